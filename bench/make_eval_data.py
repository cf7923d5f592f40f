#!/usr/bin/env python3
"""Data sets for `specextend eval`: documents, meetings, questions and adversarial texts, as JSON lines (docs/eval.md).

    bench/make_eval_data.py --govreport DIR --qmsum FILE --spec-bench FILE --each 2 > cells.jsonl

Documents come from local files: GovReport's (govreport_512.jsonl ... those that are there; with "text" and "answer"), QMSum's meetings ("text" and
"queries") and Spec-Bench's questions ("category" and "turns"). The adversarial texts are made here, from a seed: random
words, base64, a text that changes its language with every sentence, and a log of a server. Every line has a category; what
is asked of a model goes through its chat template ("messages"), what it shall continue does not ("prompt").
"""
import argparse
import base64
import json
import pathlib
import random
import sys

# Name of the category, the file, and characters of a document (about 4.7 per token).
GOVREPORT = {"govreport-512": ("govreport_512.jsonl", 2200), "govreport-1k": ("govreport_1K.jsonl", 4500), "govreport-2k": ("govreport_2K.jsonl", 9200),
             "govreport-4k": ("govreport_4K.jsonl", 18500), "govreport-7.5k": ("govreport_8K.jsonl", 34000),
             "govreport-16k": ("govreport_16K.jsonl", 86000)}
MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
# Sentences of the project's own, the same thought in each.
SENTENCES = [
    "The train to the coast leaves at seven, and nobody knows why it is always late.",
    "Der Zug an die Küste fährt um sieben, und niemand weiß, warum er immer zu spät kommt.",
    "Le train pour la côte part à sept heures, et personne ne sait pourquoi il est toujours en retard.",
    "El tren hacia la costa sale a las siete, y nadie sabe por qué siempre llega tarde.",
    "Поезд к морю отходит в семь, и никто не знает, почему он всегда опаздывает.",
    "开往海边的火车七点出发,没有人知道它为什么总是晚点。",
    "海へ行く列車は七時に出るが、なぜいつも遅れるのかは誰も知らない。",
    "바다로 가는 기차는 일곱 시에 떠나는데 왜 늘 늦는지 아무도 모른다.",
    "يغادر القطار إلى الساحل في السابعة، ولا أحد يعرف لماذا يتأخر دائما.",
    "समुद्र की ओर जाने वाली गाड़ी सात बजे छूटती है और कोई नहीं जानता कि वह हमेशा देर से क्यों आती है।",
    "Il treno per la costa parte alle sette e nessuno sa perché sia sempre in ritardo.",
    "Το τρένο για την ακτή φεύγει στις επτά και κανείς δεν ξέρει γιατί αργεί πάντα.",
    "Pociąg nad morze odjeżdża o siódmej i nikt nie wie, dlaczego zawsze się spóźnia.",
    "Tåget till kusten går klockan sju, och ingen vet varför det alltid är sent.",
]


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def asked(category, number, text, reference=None):
    line = {"id": f"{category}-{number}", "category": category, "messages": [{"role": "user", "content": text}]}
    return line | ({"reference": reference} if reference else {})


def continued(category, number, text):
    return {"id": f"{category}-{number}", "category": category, "prompt": text}


def documents(folder, each):
    for category, (name, characters) in GOVREPORT.items():
        file = pathlib.Path(folder) / name
        for number, line in enumerate(lines_of(file)[:each] if file.exists() else []):
            text = line["text"].split("### Text:", 1)[-1].split("### Summary:", 1)[0].strip()[:characters]
            yield asked(category, number, f"Summarize the following text.\n\n{text}", line.get("answer"))


def meetings(path, each):
    for number, line in enumerate(lines_of(path)[:each]):
        query = line["queries"][0]
        yield asked("qmsum", number, f"{line['text'][:9000]}\n\n{query['query']}", query["answer"])


def questions(path, each):
    found = {}
    for line in lines_of(path):
        category = "mt-bench" if line["category"] in MT_BENCH else line["category"]
        found.setdefault(category, []).append(line["turns"][0])
    for category, turns in found.items():
        step = max(1, len(turns) // each)  # from all over the list
        for number, turn in enumerate(turns[::step][:each]):
            yield asked(category, number, turn)


def random_words(chance):
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(chance.choices(letters, k=chance.randint(1, 9))) for _ in range(150))


def log_lines(chance):
    verbs, paths = ["GET", "POST", "PUT"], ["/", "/login", "/api/items", "/api/items/{}", "/static/app.js", "/health"]
    lines, second = [], 0
    for _ in range(24):
        second += chance.randint(0, 3)
        path = chance.choice(paths).format(chance.randint(1, 9999))
        lines.append(f"2026-03-04T10:{second // 60:02}:{second % 60:02}Z worker-{chance.randint(1, 4)} INFO "
                     f"{chance.choice(verbs)} {path} {chance.choice([200, 200, 200, 304, 404, 500])} "
                     f"{chance.randint(1, 900)}ms {chance.getrandbits(32):08x}")
    return "\n".join(lines) + "\n"


def adversarial(each, seed):
    chance = random.Random(seed)
    for number in range(each):
        yield continued("random-words", number, random_words(chance))
        yield continued("base64", number, base64.encodebytes(chance.randbytes(480)).decode())
        yield continued("languages", number, " ".join(chance.sample(SENTENCES, len(SENTENCES))))
        yield continued("logs", number, log_lines(chance))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--govreport", help="folder with govreport_512.jsonl, _1K, _2K, _4K, _8K and _16K")
    parser.add_argument("--qmsum", help="file of meetings")
    parser.add_argument("--spec-bench", help="file of questions")
    parser.add_argument("--each", type=int, default=2, help="prompts of each category")
    parser.add_argument("--seed", type=int, default=1, help="of the adversarial texts")
    parser.add_argument("--only", nargs="*", help="these categories alone")
    args = parser.parse_args()
    lines = list(documents(args.govreport, args.each)) if args.govreport else []
    lines += meetings(args.qmsum, args.each) if args.qmsum else []
    lines += questions(args.spec_bench, args.each) if args.spec_bench else []
    lines += adversarial(args.each, args.seed)
    for line in lines:
        if not args.only or line["category"] in args.only:
            json.dump(line, sys.stdout, ensure_ascii=False)
            print()


if __name__ == "__main__":
    main()
