"""What Kimi-K2.5 is asked."""

from __future__ import annotations

from suite.checks import Material
from suite.pictures import halves

_RED, _GREEN, _BLUE = (200, 30, 30), (30, 160, 30), (30, 30, 200)

MATERIAL = Material(
    prompts=(
        "Write a Python function that merges two sorted lists, and explain its running time.",
        "A train leaves at 9:40 and takes 2 hours 35 minutes. When does it arrive? Think step by "
        "step.",
        "Translate into German: The kettle was still warm when she came home.",
        "Erkläre in drei Sätzen, warum der Himmel blau ist.",
        "用中文写一首关于秋天的短诗。",
        "List the first twelve prime numbers, one a line, and nothing else.",
        "Rewrite as JSON with the keys name, born and works: Ada Lovelace, born 1815, wrote notes "
        "on the Analytical Engine.",
        "What is the derivative of x**3 * sin(x)? Show the rule that you use.",
        "Write a haiku about a compiler, then the same one without the letter e.",
        "Give me the shell commands that find the ten largest files below the current folder.",
        "Summarise the plot of Hamlet for a child of eight in five sentences.",
        "Two dice are thrown. How likely is a sum of at least ten?",
        "Explain the difference between a mutex and a semaphore with an example in C.",
        "Write an SQL query for the customers who ordered in every month of 2024.",
        "Répondez en français : quelles sont les causes principales des marées ?",
        "Continue the sequence and say why: 1, 1, 2, 3, 5, 8, 13,",
    ),
    pictures=(
        (
            "Which colour is above and which below? Answer in one sentence.",
            halves(224, 224, _RED, _BLUE),
            halves(224, 224, _BLUE, _GREEN),
        ),
        (
            "Describe this picture precisely.",
            halves(448, 252, _GREEN, _RED),
            halves(448, 252, _RED, _GREEN),
        ),
    ),
    tools=(
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather of a city on a day.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "day": {"type": "string", "description": "YYYY-MM-DD"},
                    },
                    "required": ["city", "day"],
                },
            },
        },
        {
            "type": "function",
            "function": {
                "name": "write_file",
                "description": "Write a text file.",
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
                    "required": ["path", "content"],
                },
            },
        },
    ),
    calling=(
        "What is the weather in Paris on 2026-05-01? Call the tool at once.",
        "Compare the weather in Tokyo, Oslo and São Paulo on 2026-05-02. Make the calls at once.",
        "Write the file hello.py: a program that prints each line of a file with its number, with "
        "quotes, braces and a comment in it. Call the tool at once.",
    ),
    filler="\n".join(
        f"Entry {n}: station {n * 7919 % 10007} counted {n * n % 997} travellers and "
        f"{n * 31 % 89} bicycles."
        for n in range(1, 401)
    ),
    data={},
    tokens=512,
    call_tokens=4096,  # it thinks first
)
