#!/usr/bin/env python3
"""A question about a long document, with the progress of the prompt, and which places of the document the draft looked at.

    specextend serve -c 16384          # in another terminal
    python3 examples/openai/long_document.py [FILE [QUESTION]]
"""
import json
import os
import sys
import urllib.request

import openai

URL = os.environ.get("SPECEXTEND_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("SPECEXTEND_API_KEY", "none")
client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY)


def post(path, body):
    """Paths of the server that OpenAI's API does not have."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), headers)) as response:
        return json.load(response)


path = sys.argv[1] if len(sys.argv) > 1 else "/usr/share/common-licenses/GPL-3"
question = sys.argv[2] if len(sys.argv) > 2 else "Summarize this document in a few sentences."
with open(path) as file:
    messages = [{"role": "user", "content": f"{question}\n\n{file.read()}"}]

stream = client.chat.completions.create(
    model=client.models.list().data[0].id, messages=messages, max_tokens=200, temperature=0, stream=True,
    extra_body={"return_progress": True, "spec_details": True, "repeat_penalty": 1.1, "repeat_last_n": 256})
cells, drafted, tokens = [], 0, 0
for chunk in stream:
    more = chunk.model_extra or {}
    if progress := more.get("prompt_progress"):
        print(f"\rprompt: {progress['processed']} of {progress['total']} tokens", end="", file=sys.stderr, flush=True)
    if details := more.get("specextend"):
        cells = details.get("cells", cells)  # only there when they changed
        for token in details["tokens"]:
            tokens += 1
            drafted += token["depth"] > 0
            bold = token["depth"] > 0 and sys.stdout.isatty()
            print(f"\033[1m{token['text']}\033[0m" if bold else token["text"], end="", flush=True)

print(f"\n\n[{drafted} of {tokens} tokens were drafted]")
if cells:
    prompt = post("/tokenize", {"content": post("/apply-template", {"messages": messages})["prompt"]})["tokens"]
    print("The draft worked on these places of the text at the end:")
    for first, end in cells[-10:]:
        piece = post("/detokenize", {"tokens": prompt[first:end]})["content"] if first < len(prompt) else "(its own answer)"
        print(f"{first:7} .. {end:<7} {' '.join(piece.split())[:90]}")
