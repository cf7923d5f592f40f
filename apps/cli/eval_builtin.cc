// The built-in data set of `specextend eval`: short prompts of the kinds that speculation finds easy or hard.
#include "cli/eval_data.h"

namespace sx::cli {

std::string_view builtin_eval_data() {
  return R"jsonl({"id": "story", "category": "prose", "prompt": "The lighthouse keeper had not spoken to anyone for eleven days when, in the middle of a calm night, a stranger knocked at the door. He put down his book and"}
{"id": "count", "category": "list", "prompt": "The numbers from one to forty in words, separated by commas: one, two, three, four, five,"}
{"id": "code", "category": "code", "prompt": "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n\n\nclass Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):"}
{"id": "question", "category": "chat", "messages": [{"role": "user", "content": "What is the difference between weather and climate? Answer in three sentences."}]}
{"id": "capital", "category": "answer", "messages": [{"role": "user", "content": "Which city is the capital of France? Answer with its name only."}], "reference": "Paris"}
{"id": "rewrite", "category": "copy", "instruction": "Copy the following text and change nothing but the name of the river, which becomes the Danube:", "text": "The town lies on both banks of the Severn. In spring the Severn rises by two metres within a day, and the lower streets are closed. Every house there has a mark at the door that shows how high the Severn stood in the year it was built. The bridge over the Severn is older than any of them: it has five arches of red stone, and the third one, which was rebuilt after a flood of the Severn, is a little narrower than the others.\n\nCopy: The town lies on both banks of the Danube."}
{"id": "summary", "category": "document", "instruction": "Summarise the minutes in two sentences.", "text": "The committee met at nine. The first item was the roof of the library, which has leaked since the storm in March. Two offers were on the table: one to repair the north side only, at eleven thousand, and one to cover the whole roof anew, at forty-two thousand. The treasurer pointed out that the reserve holds thirty thousand, and that the north side has been repaired twice in ten years. It was agreed to ask the county for half of the larger sum, and to put up a tarpaulin until an answer comes. The second item was the opening hours. Visitors have asked for a late evening once a week; the staff prefer Thursday. It was agreed to try Thursdays until nine for three months and to count visitors. The third item, a new sign at the entrance, was put off to the next meeting because the drawings had not arrived.\n\nSummary:", "reference": "The committee will ask the county for half of the cost of a new library roof and cover it with a tarpaulin until then. The library will stay open until nine on Thursdays for three months as a trial, and the new sign was postponed."}
)jsonl";
}

}  // namespace sx::cli
