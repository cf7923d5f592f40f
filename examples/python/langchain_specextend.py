"""SpecExtend in LangChain, in the same process: a chat model over specextend.LLM.

    model = ChatSpecExtend(llm=LLM("model.gguf"), max_tokens=200)
    print(model.invoke("What is speculative decoding?").content)
"""
from typing import Any, AsyncIterator, Iterator, List, Optional

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def as_dicts(messages: List[BaseMessage]) -> list:
    return [{"role": ROLES.get(message.type, message.type), "content": message.text} for message in messages]


class ChatSpecExtend(BaseChatModel):
    llm: Any  # specextend.LLM
    max_tokens: int = -1
    temperature: float = 0
    seed: int = 0

    @property
    def _llm_type(self) -> str:
        return "specextend"

    def _keywords(self, stop: Optional[List[str]], more: dict) -> dict:
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed, "stop": stop or [], **more}

    def _answer(self, result: Any) -> ChatResult:
        about = {"finish_reason": result.finish_reason, "speculation": result.speculation}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=result.text), generation_info=about)])

    def _generate(self, messages: List[BaseMessage], stop: Optional[List[str]] = None,
                  run_manager: Optional[CallbackManagerForLLMRun] = None, **more: Any) -> ChatResult:
        return self._answer(self.llm.chat(as_dicts(messages), **self._keywords(stop, more)))

    async def _agenerate(self, messages: List[BaseMessage], stop: Optional[List[str]] = None,
                         run_manager: Optional[AsyncCallbackManagerForLLMRun] = None, **more: Any) -> ChatResult:
        return self._answer(await self.llm.achat(as_dicts(messages), **self._keywords(stop, more)))

    def _stream(self, messages: List[BaseMessage], stop: Optional[List[str]] = None,
                run_manager: Optional[CallbackManagerForLLMRun] = None, **more: Any) -> Iterator[ChatGenerationChunk]:
        with self.llm.chat_stream(as_dicts(messages), **self._keywords(stop, more)) as pieces:
            for piece in pieces:
                if run_manager:
                    run_manager.on_llm_new_token(str(piece))
                yield ChatGenerationChunk(message=AIMessageChunk(content=str(piece)))

    async def _astream(self, messages: List[BaseMessage], stop: Optional[List[str]] = None,
                       run_manager: Optional[AsyncCallbackManagerForLLMRun] = None, **more: Any) -> AsyncIterator[ChatGenerationChunk]:
        prompt = self.llm.chat_tokens(as_dicts(messages))
        async with self.llm.astream(prompt, **self._keywords(stop, more)) as pieces:
            async for piece in pieces:
                yield ChatGenerationChunk(message=AIMessageChunk(content=str(piece)))
