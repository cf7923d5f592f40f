#!/usr/bin/env python3
"""Prompts for measuring speculation on long inputs, as JSON lines with a field "text".

From files whose lines hold a document in "text" (such as the GovReport prompts of the SpecExtend paper): the documents as
they are, or the documents followed by the request to quote a passage. The passage is named by its first words, which also
begin the answer; it is taken from a place that depends on the line's number, so that all parts of a document occur.
"""
import argparse
import json
import re
import sys


def document_of(text):
    body = text.split("### Text:", 1)[-1]
    return body.split("### Summary:", 1)[0].strip()


def quote_prompt(text, number, limit, words):
    document = document_of(text)[:limit]
    document = document[:document.rfind(". ") + 1]
    paragraphs = [p.strip() for p in re.split(r"\n+", document) if len(p.split()) > 4 * words]
    if not paragraphs:
        paragraphs = [document]
    # Documents without line breaks: start at a sentence.
    chosen = paragraphs[number * 7 % len(paragraphs)]
    sentences = re.split(r"(?<=\.) (?=[A-Z])", chosen)
    start = sentences[(number * 5) % max(1, len(sentences) // 2)]
    begin = " ".join(start.split()[:words])
    return (f"{document}\n\n### Task: quote the passage of the text above that begins with \"{begin}\", word for word, and go "
            f"on quoting to the end.\n### Quote:\n\n{begin}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON lines with a field \"text\"")
    parser.add_argument("--mode", choices=["plain", "quote"], default="quote")
    parser.add_argument("--chars", type=int, default=33000, help="longest document, in characters")
    parser.add_argument("--words", type=int, default=8, help="words that name a passage")
    args = parser.parse_args()
    for path in args.files:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                text = json.loads(line)["text"]
                if args.mode == "quote":
                    text = quote_prompt(text, number, args.chars, args.words)
                else:
                    document = document_of(text)[:args.chars]
                    text = text.replace(document_of(text), document)
                json.dump({"text": text, "source": path.rsplit("/", 1)[-1], "number": number}, sys.stdout)
                print()


if __name__ == "__main__":
    main()
