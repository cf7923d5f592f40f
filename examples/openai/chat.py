#!/usr/bin/env python3
"""A chat on the terminal through the `openai` package: chat.py [QUESTION], or type; an empty line ends it.

    specextend serve          # in another terminal
    pip install openai && python3 examples/openai/chat.py
"""
import os
import sys

import openai

client = openai.OpenAI(base_url=os.environ.get("SPECEXTEND_URL", "http://127.0.0.1:8080") + "/v1",
                       api_key=os.environ.get("SPECEXTEND_API_KEY", "none"))
model = client.models.list().data[0].id
messages = []


def answer(question):
    messages.append({"role": "user", "content": question})
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=200, stream=True,
                                            stream_options={"include_usage": True})
    text = ""
    for chunk in stream:
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            text += piece
            print(piece, end="", flush=True)
        if chunk.usage:  # the last chunk, which has no choices
            spec = (chunk.model_extra or {}).get("metrics", {}).get("speculative_decoding", {})
            print(f"\n[{chunk.usage.completion_tokens} tokens, {spec.get('num_accepted_draft_tokens', 0)} of them from drafts]")
    messages.append({"role": "assistant", "content": text})


if len(sys.argv) > 1:
    answer(" ".join(sys.argv[1:]))
else:
    while question := input("> "):
        answer(question)
