#!/usr/bin/env python3
"""Cases whose answer lies far back in a long text, for bench_acceptance --far: JSON lines with kind, text, answer and
the characters [evidence_begin, evidence_end) of the passage that is needed.

    make_far_context.py DOCUMENTS.jsonl ... > cases.jsonl

Documents are lines with a field "text" (the GovReport prompts of the SpecExtend paper). A text ends with a strong cue,
because small models cannot follow instructions over thousands of tokens: it begins the answer, a base model goes on.
  quote      a passage of the document, word for word; its first words are given
  record     an entry of a register inserted into the document; the entries before it and its name are repeated
  key-value  the phrase of a unique name in a list inserted into the document; repeated as far as records are
  copy-edit  a passage with one of its first words changed; it goes on as it was
The evidence lies in the first 60% of the document and more than 2,048 tokens before the end (MOST_PER_TOKEN characters
per token are assumed for that, more than English text has).
"""
import argparse
import json
import random
import re
import sys

KINDS = ["quote", "record", "key-value", "copy-edit"]
PER_TOKEN = 4.6          # characters, for the length of a text: few, so that none outgrows the context
MOST_PER_TOKEN = 5.6     # for what must stay outside
RECENT = 2048            # tokens
FIRST_SHARE = 0.6
ANSWER_WORDS = 32        # of passages
ENTRIES = 8              # of inserted lists

QUOTES = [
    "\n\nThe following passage is quoted word for word from the report above.\n\n\"{}",
    "\n\nAs the report above says: \"{}",
    "\n\n### Quotation from the text above\n\n{}",
]
EDITS = [
    "\n\nThe same passage after copy-editing:\n\n{}",
    "\n\n### Passage from the text above, with a correction\n\n{}",
    "\n\nCorrected version of an earlier paragraph: \"{}",
]
# Head of a list, an entry, and how much of the entry is given. The cue repeats the list up to there: a name alone is
# not enough for a small model.
LISTS = [
    ("\n\nAccess phrases:\n", "The access phrase of {name} is {value}.", "The access phrase of {name} is"),
    ("\n\nGlossary of code names:\n", "{name} = {value};", "{name} ="),
    ("\n\nNotes:\n", "Remember that {name} keeps the {value}.", "Remember that {name} keeps the"),
]
REGISTERS = [
    ("\n\nRegister of members:\n", "Entry of {name}. Town: {town}. Trade: {trade}. Motto: {motto}. Friend: {friend}.",
     "Entry of {name}."),
    ("\n\nList of witnesses:\n", "{name}, a {trade} from {town}, was heard in the case of the {motto} beside {friend}.",
     "{name},"),
    ("\n\nPassenger list:\n", "Passenger {name}: boarded at {town}, works as a {trade}, has a {motto}, knows {friend}.",
     "Passenger {name}:"),
]
FIRST = ("Ada Bruno Clara Dmitri Edith Farid Greta Hugo Ingrid Jonas Katya Leo Marta Nils Olga Pavel Quentin "
         "Rosa Sven Tessa Ulrich Vera Walter Xenia Yusuf Zelda").split()
LAST = ("Abbott Barrow Castillo Dunmore Eckhart Fontaine Garrick Holloway Ivanov Jessup Kowalski Lindqvist "
        "Moreno Norwood Okafor Pemberton Quigley Rosenthal Sandoval Thackeray Underhill Vasquez Whitlock "
        "Yamada Zimmerman").split()
TOWNS = "Lisbon Geneva Toronto Nairobi Oslo Kyoto Boston Dublin Warsaw Havana Cairo Vienna Seattle Mumbai".split()
TRADES = "baker glazier surveyor printer tailor carpenter gardener chemist sailor painter mason brewer weaver".split()
THINGS = ("lantern meadow falcon kettle harbor violin orchard compass anchor saddle pillow ladder basket candle "
          "hammer mirror bridge feather pebble ribbon").split()
COLORS = "copper silver crimson violet golden purple scarlet bronze jade cobalt".split()


def document_of(text):
    body = text.split("### Text:", 1)[-1]
    return re.sub(r"\s*\n\s*", "\n\n", body.split("### Summary:", 1)[0].strip())


def cut(document, characters):
    """at the end of a sentence"""
    piece = document[:characters]
    return piece[:piece.rfind(". ") + 1]


def latest_end(length):
    """where evidence must end in a document of so many characters"""
    return int(min(FIRST_SHARE * length, length - RECENT * MOST_PER_TOKEN))


def passage(document, dice, cue_words):
    """-> (begin, end of the cue, end of the answer) of a passage that begins with a sentence, or None"""
    starts = [0] + [m.end() for m in re.finditer(r"[.!?] (?=[A-Z])", document)]
    dice.shuffle(starts)
    for begin in starts:
        words = list(re.finditer(r"\S+", document[begin:begin + 3000]))
        if len(words) < cue_words + ANSWER_WORDS:
            continue
        cue, end = begin + words[cue_words - 1].end(), begin + words[cue_words + ANSWER_WORDS - 1].end()
        unique = document.count(document[begin:cue]) == 1 and "\n" not in document[begin:end]
        if unique and end <= latest_end(len(document)):
            return begin, cue, end
    return None


def changed(cue, dice):
    """the same words but one in the first half"""
    words = cue.split(" ")
    at = dice.randrange(1, max(2, len(words) // 2))
    words[at] = dice.choice(["indeed", "also", "formerly", "largely"])
    return " ".join(words)


def passage_case(kind, document, dice, number, cue_words):
    found = passage(document, dice, cue_words)
    if not found:
        return None
    begin, cue, end = found
    opening = document[begin:cue]
    frames = QUOTES if kind == "quote" else EDITS
    text = document + frames[number % len(frames)].format(opening if kind == "quote" else changed(opening, dice))
    return dict(kind=kind, text=text, answer=document[cue:end], evidence_begin=cue, evidence_end=end)


def list_case(kind, document, dice, number):
    head, form, known = (LISTS if kind == "key-value" else REGISTERS)[number % 3]
    names = [f"{first} {last}" for first, last in zip(dice.sample(FIRST, 2 * ENTRIES), dice.sample(LAST, 2 * ENTRIES))]
    things, phrases = dice.sample(THINGS, ENTRIES), []
    for i in range(ENTRIES):
        phrases.append(f"{dice.choice(COLORS)} {things[i]} and the {dice.choice(COLORS)} {things[i - 1]}")
    lines = [form.format(name=names[i], value=phrases[i], motto=f"{dice.choice(COLORS)} {things[i]}",
                         town=dice.choice(TOWNS), trade=dice.choice(TRADES), friend=names[ENTRIES + i])
             for i in range(ENTRIES)]
    block = head + "\n".join(lines) + "\n\n"
    latest = latest_end(len(document) + len(block)) - len(block)
    borders = [m.end() for m in re.finditer(r"[.!?] (?=[A-Z])", document) if m.end() <= latest]
    if not borders:
        return None
    at, chosen = dice.choice(borders), dice.randrange(ENTRIES // 2, ENTRIES)
    text = document[:at].rstrip() + block
    begin = len(text) - len(block) + block.index(lines[chosen])
    given = known.format(name=names[chosen])
    return dict(kind=kind, text=text + document[at:] + head + "".join(line + "\n" for line in lines[:chosen]) + given,
                answer=lines[chosen][len(given):].rstrip(".;"),
                evidence_begin=begin, evidence_end=begin + len(lines[chosen]))


def cases_of(documents, args):
    dice = random.Random(args.seed)
    for kind in KINDS:
        made, tries = 0, 0
        while made < args.cases:
            tries += 1
            if tries > 20 * args.cases:
                raise SystemExit(f"{kind}: only {made} cases, the documents are too short")
            characters = int(args.tokens[made % len(args.tokens)] * PER_TOKEN)
            document = cut(dice.choice(documents), characters)
            if len(document) < 0.9 * characters:
                continue
            number = made // len(args.tokens)
            if kind in ("quote", "copy-edit"):
                case = passage_case(kind, document, dice, number, args.cue)
            else:
                case = list_case(kind, document, dice, number)
            if case:
                made += 1
                yield case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+")
    parser.add_argument("--cases", type=int, default=40, help="per kind")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 7500], help="lengths of texts, about")
    parser.add_argument("--cue", type=int, default=40, help="words of a passage that are given")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    documents = []
    for path in args.documents:
        with open(path, encoding="utf-8") as f:
            documents += [document_of(json.loads(line)["text"]) for line in f if line.strip()]
    for case in cases_of(documents, args):
        assert case["answer"] in case["text"][case["evidence_begin"]:case["evidence_end"]]
        sys.stdout.write(json.dumps(case, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
