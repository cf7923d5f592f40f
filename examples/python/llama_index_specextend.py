"""SpecExtend in LlamaIndex, in the same process: an LLM over specextend.LLM.

    Settings.llm = SpecExtend(llm=LLM("model.gguf"), max_tokens=200)
    print(Settings.llm.complete("Once upon a time"))
"""
from typing import Any, Sequence

from llama_index.core.base.llms.types import (ChatMessage, ChatResponse, ChatResponseGen, CompletionResponse, CompletionResponseGen,
                                              LLMMetadata)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.custom import CustomLLM


def as_dicts(messages: Sequence[ChatMessage]) -> list:
    return [{"role": message.role.value, "content": message.content or ""} for message in messages]


class SpecExtend(CustomLLM):
    llm: Any  # specextend.LLM
    max_tokens: int = 256
    temperature: float = 0
    seed: int = 0

    @classmethod
    def class_name(cls) -> str:
        return "SpecExtend"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.llm.context, num_output=self.max_tokens, is_chat_model=True,
                           model_name=self.llm.model)

    def _keywords(self, more: dict) -> dict:
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed, **more}

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        result = self.llm.generate(prompt, **self._keywords(more))
        return CompletionResponse(text=result.text, additional_kwargs={"finish_reason": result.finish_reason})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            text = ""
            with self.llm.stream(prompt, **self._keywords(more)) as stream:
                for piece in stream:
                    text += piece
                    yield CompletionResponse(text=text, delta=str(piece))
        return pieces()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **more: Any) -> ChatResponse:
        result = self.llm.chat(as_dicts(messages), **self._keywords(more))
        return ChatResponse(message=ChatMessage(role="assistant", content=result.text))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **more: Any) -> ChatResponseGen:
        def pieces() -> ChatResponseGen:
            text = ""
            with self.llm.chat_stream(as_dicts(messages), **self._keywords(more)) as stream:
                for piece in stream:
                    text += piece
                    yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=str(piece))
        return pieces()
