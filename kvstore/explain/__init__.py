"""Why did this prompt miss? Two prompts side by side, a folder of them, or a prompt and a store.

prompt.py reads prompts, align.py finds where two texts part and meet again, causes.py names why,
compare.py counts what it cost, lint.py ranks causes over a folder. store.py follows a prompt
through a store's roots: stored.py reads them, siblings.py compares. render.py and page.py print.
"""

from kvstore.explain.causes import Cause
from kvstore.explain.compare import Explanation, explain
from kvstore.explain.lint import Lint, lint
from kvstore.explain.prompt import Prompt, PromptError, read_prompt
from kvstore.explain.store import Answer, StoreExplanation, explain_store

__all__ = [
    "Answer",
    "Cause",
    "Explanation",
    "Lint",
    "Prompt",
    "PromptError",
    "StoreExplanation",
    "explain",
    "explain_store",
    "lint",
    "read_prompt",
]
