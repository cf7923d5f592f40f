// SpecExtend, the library. Open a model, ask it:
//
//   auto engine = sx::Engine::open({.model = "model.gguf"});
//   std::cout << engine->generate("Once upon a time", {.max_tokens = 100}).text;
//
//   auto session = engine->start();  // keeps the KV cache between turns
//   std::vector<sx::Message> messages{{"user", "Summarize: " + document}};
//   std::cout << session->chat(messages).text;
//
// This header has what a program needs to generate text. Thread safety, lifetimes, errors, callbacks and what holds
// between versions are described in <specextend/engine.h>. Further headers, for tools: <specextend/inspect.h>,
// <specextend/convert.h> and <specextend/drafts.h>.
#pragma once
#include <specextend/engine.h>
#include <specextend/error.h>
#include <specextend/grammar.h>
#include <specextend/speculation.h>
#include <specextend/tokenizer.h>
