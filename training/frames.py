"""The frames that training text is sampled in: chat template, tasks about a passage, summaries of a raw document,
and the openings of made-up reports, which give the target modern prose to be asked about."""

END_OF_TEXT = 0
STOP_TOKENS = (0, 2)  # <|endoftext|>, <|im_end|>

CHAT_HEAD = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
             "<|im_start|>user\n")
CHAT_TAIL = "<|im_end|>\n<|im_start|>assistant\n"

TASKS = [
    "Summarize the following text.", "Write a short summary of this passage.",
    "What are the main points of the text below?", "Explain the following passage in simple terms.",
    "What is this text about?", "Rewrite the following passage in your own words.", "List the key facts in the text.",
    "Write a question about the following text and answer it.", "Continue the following text.",
    "Who and what is mentioned in this text?", "Give a detailed answer: what does the author say here?",
    "Write an introduction for the following document.", "Turn the following notes into an article.",
    "Write a title and an abstract for the following text.", "Describe the purpose of the following document.",
    "Read the text below and write a report about it."]

SUMMARY = ("\n\nSummarize the following text into a summary of less than %d words.\n### Text:\n\n",
           "\n\n### Summary:\n\n")
SUMMARY_WORDS = [100, 200, 400, 800]
RAW = [SUMMARY] * 4 + [("Read the text and write a summary.\n\nText: ", "\n\nSummary:"),
                       ("Document:\n", "\n\nKey points:\n"), ("", ""), ("", "\n\nTL;DR:")]

AGENCIES = [
    "the Department of Defense", "the Department of Energy", "the Department of Agriculture", "the Coast Guard",
    "the Department of Veterans Affairs", "the Federal Aviation Administration", "the Internal Revenue Service",
    "the Environmental Protection Agency", "the Department of Education", "the Social Security Administration",
    "the Department of Transportation", "the Forest Service", "the Centers for Medicare and Medicaid Services",
    "the Federal Communications Commission", "the Department of Housing and Urban Development", "the Navy",
    "the Department of Homeland Security", "the National Park Service", "the Census Bureau", "the Department of State",
    "the Small Business Administration", "the Nuclear Regulatory Commission", "the Department of Justice",
    "the Securities and Exchange Commission", "the World Bank", "the European Union", "a state legislature",
    "the Food and Drug Administration", "the Department of Labor", "the city council", "a regional health authority"]

SUBJECTS = [
    "the cost of major weapon programs", "rural broadband access", "the farm bill", "drinking water standards",
    "unemployment insurance", "highway funding", "student loans", "air traffic control modernization",
    "cybersecurity of government networks", "disaster relief after hurricanes", "wildfire management",
    "prescription drug prices", "the national debt limit", "foreign aid", "trade agreements", "immigration courts",
    "veterans' health care", "nuclear waste storage", "the budget process", "public housing", "school nutrition",
    "tax credits for families", "flood insurance", "patent reform", "bank supervision", "offshore oil leases",
    "renewable energy subsidies", "border security", "prison overcrowding", "mental health services", "elections",
    "satellite programs", "pension guarantees", "food safety inspections", "railroad safety", "endangered species",
    "telecommunications mergers", "child care grants", "the appropriations bill", "federal land management",
    "water rights in the West", "shipbuilding plans", "sanctions policy", "artificial intelligence procurement",
    "postal service finances", "electricity transmission", "teacher shortages", "opioid treatment", "port security"]

REPORTS = [
    "This report discusses {subject} and the role of {agency}. In fiscal year {year},",
    "{Agency} has long been responsible for {subject}. Since {year}, Congress has",
    "Background\n\nOn March {day}, {year}, the House passed a bill on {subject}. {Agency}",
    "Why this study was done: in {year}, spending on {subject} reached ${number} million. {Agency}",
    "{Agency} reported in {year} that {subject} would require {number} additional employees.",
    "Introduction\n\nThe debate over {subject} intensified in {year}, when {agency}",
    "According to {agency}, about {number} applications related to {subject} were filed in {year}. The Act",
    "Summary of findings. We reviewed {number} cases of {subject} handled by {agency} between {year} and"]


def report_opening(rng):
    """the first words of a report that does not exist"""
    pick = lambda items: items[int(rng.integers(len(items)))]
    agency = pick(AGENCIES)
    return pick(REPORTS).format(agency=agency, Agency=agency[0].upper() + agency[1:], subject=pick(SUBJECTS),
                                year=int(rng.integers(1985, 2021)), day=int(rng.integers(1, 29)),
                                number=int(rng.integers(12, 980)))
