#!/usr/bin/env python3
"""A function that the model calls: its arguments, the function's result, and the model's answer to that."""
import json
import os
from typing import Literal

import openai
import pydantic

client = openai.OpenAI(base_url=os.environ.get("SPECEXTEND_URL", "http://127.0.0.1:8080") + "/v1",
                       api_key=os.environ.get("SPECEXTEND_API_KEY", "none"))
model = client.models.list().data[0].id


class GetWeather(pydantic.BaseModel):
    """The weather of a city"""
    model_config = pydantic.ConfigDict(extra="forbid")
    city: str = pydantic.Field(max_length=30)
    unit: Literal["celsius", "fahrenheit"]


def get_weather(city, unit):
    return {"city": city, "temperature": {"celsius": 12, "fahrenheit": 54}[unit], "sky": "cloudy"}


tools = [{"type": "function", "function": {"name": "get_weather", "description": GetWeather.__doc__,
                                           "parameters": GetWeather.model_json_schema()}}]
messages = [{"role": "user", "content": "How is the weather in Oslo, in degrees Celsius?"}]

first = client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice="required", max_tokens=200)
messages.append(first.choices[0].message.model_dump(exclude_none=True))
for call in first.choices[0].message.tool_calls:
    arguments = GetWeather.model_validate_json(call.function.arguments)
    result = get_weather(arguments.city, arguments.unit)
    print(f"called: {call.function.name}({arguments.city!r}, {arguments.unit!r}) -> {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})

second = client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice="none", max_tokens=100)
print("answer:", second.choices[0].message.content)
