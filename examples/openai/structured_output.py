#!/usr/bin/env python3
"""An answer as an object of a class: the schema goes to the server, which lets the model write nothing else."""
import os
from typing import Literal

import openai
import pydantic

client = openai.OpenAI(base_url=os.environ.get("SPECEXTEND_URL", "http://127.0.0.1:8080") + "/v1",
                       api_key=os.environ.get("SPECEXTEND_API_KEY", "none"))


class Fruit(pydantic.BaseModel):
    colour: Literal["red", "green", "yellow"]
    taste: str = pydantic.Field(max_length=20)
    ripe: bool


answer = client.chat.completions.parse(model=client.models.list().data[0].id, response_format=Fruit, max_tokens=200,
                                       messages=[{"role": "user", "content": "Describe an apple."}])
fruit = answer.choices[0].message.parsed
print(repr(fruit))
