r"""Responses made to hang, crash or trick a grader. None of them answers :data:`GOLD`."""

import itertools

GOLD = "7919"
RIGHT = r"<think>so</think> The answer is $\boxed{7919}$."

# fmt: off
GUESSES = ["7", "79", "791", "7918", "7919", "7920", "17919", "-7919", "79.19"]

# Each of these keeps sympy or a regular expression busy for longer than any time limit.
HANGING = [
    "9^{9^{9^{9}}}", "9^{9^{9^{9^{9}}}} - 9^{9^{9^{9^{9}}}} + 7918", "99999999^{99999999}", "((10^{9})!)!",
    r"\binom{10^{9}}{5 \cdot 10^{8}}", r"\sum_{k=1}^{10^{9}} \frac{1}{k^3+1}",
    r"\prod_{k=1}^{10^{9}} (k^2+1)", r"\int_0^1 \frac{\sin(x^{x^{x}})}{\ln(1+x^{5})} dx",
    r"\sqrt[3]{2+\sqrt[3]{3+\sqrt[3]{5+\sqrt[3]{7+\sqrt[3]{11+\sqrt[3]{13}}}}}}", "(x+1)^{100000} - x",
    r"\lim_{n \to \infty} \frac{n!^{n!}}{(n^n)!}", r"\log(10^{10^{10^{10}}})", r"\sin(10^{10^{10}})",
    r"\left(\sqrt{2}+\sqrt{3}+\sqrt{5}+\sqrt{7}+\sqrt{11}+\sqrt{13}\right)^{60}",
    r"\lfloor \pi \cdot 10^{10^{9}} \rfloor", r"\gcd(3^{10^9}, 7^{10^9})",
]

_PYTHON = [
    "__import__('os').system('touch pwned')", "open('pwned', 'w').write('x')", "eval('7918+1')",
    "(lambda: open('pwned', 'w'))()", "os.kill(os.getpid(), 9)", "exit()", "sympify('7919')", "True == 1",
    "{x for x in range(10**9)}", r"\write18{touch pwned}", r"\openout1=pwned", r"\def\a{\a\a}\a", "$(touch pwned)",
]

_NOISE = [
    "", " ", "".join(map(chr, range(32))), "\u202e9197", "\uff17\uff19\uff11\uff19\uff10", "\ud7ff\ue000\uffff",
    "\U0001f916" * 5000, "\\" * 10001, "{" * 5000, "}" * 5000, "{}" * 20000, "$" * 20001, "\\(" * 5000,
    "\\[" * 5000 + "1", "\n" * 100_000, "and " * 30_000, "The final answer is $" * 5_000, "1," * 50_000, "1 " * 50_000,
    "1.2.3.4" * 10_000, "-" * 50_000 + "1", "1=" * 20_000 + "2", "9" * 200_000, "0." + "1" * 150_000, "a" * 200_000,
    "\\frac" * 20_000, "\\left(" * 10_000, "</think>" * 20_000, "The answer is " + "2x(" * 1_300,
]

_NESTED = [
    opening * depth + "7918" + closing * depth
    for depth in (50, 3000)
    for opening, closing in [
        (r"\sqrt{", "}"), (r"\frac{1}{", "}"), ("{", "}"), ("(", ")"), (r"\left(", r"\right)"), (r"\sin(", ")"),
        ("x^{", "}"), (r"\boxed{", "}"), (r"\text{", "}"), (r"\begin{pmatrix}", r"\end{pmatrix}"), ("|", "|"),
        ("[", "]"),
    ]
]

# Against the rules for lists, assignments, percent words, digits in groups, decimal commas and inequalities.
_WAYS_OF_WRITING = [
    "1 000" * 20_000, " 000" * 400, "1" + r"\,000" * 300 + "x", "1{,}" * 400, "1,22" * 400, "7918 " + "percent" * 200,
    "7918" + r"\text{ percent" * 200, "7918" + r"\%" * 900 + "1", "7918" + " " * 1900 + ".x", r"\pm" * 600,
    r"\frac{1 \pm 2}{3}," * 100 + "7", r"x = \frac{7918 \pm 1}{1}", r"\frac{7918 \pm 1 \pm 1}{1}",
    ",".join(f"x_{{{i}}}={i}" for i in range(200)), ",".join(f"x<{i}" for i in range(300)),
    r"x < 7920 \text{ and } x > 7918", "1" + "<x<1" * 300,
]

# By a ground truth that is compared as a whole.
LISTS = {
    gold: [
        *answers, ",".join(f"x<{i}" for i in range(300)), ",".join(f"{i}<x<{i + 1}" for i in range(200)),
        "1" + "<x<1" * 300, "1 < x < 9^{9^{9^{9}}}", "x > 1, x < (10^{9})!", r"x < \sin(10^{10^{10}})",
        ",".join(f"k={i}, n={i}" for i in range(100)), "k = 9^{9^{9^{9}}}, n = 2",
        r"k = \frac{1 \pm 9^{9^{9^{9}}}}{2}, n = 2", "1," * 900 + "2",
    ]
    for gold, answers in {
        "(1,2]": [r"x \in \mathbb{R}", r"(-\infty, \infty)", "1 < x", "1 < y < 2, x < 2", "x^{1000} - x^{999} < 3"],
        "x > 3": [r"x \in \mathbb{R}", "x > 3, y > 3", "x > x", "3", "x^{99} > 3^{99}"],
        "k = 45, n = 2": ["45, 2, 45", "45", "k = k, n = n", r"\{2, 45\}", r"k = 45 \text{ or } n = 2, 3"],
        "1,22": ["1.22.1", "1.2", "12.2", "1.22, 1", "0.5, 1.22"],
    }.items()
}

# More than one answer, or an answer that holds everything.
_LISTS = [
    *(joint.join(GUESSES) for joint in (",", ", ", ";", r" \text{ or } ", " or ", r"\quad", r"\\", "|", "/", " = ")),
    *(left + ", ".join(GUESSES) + right for left, right in ((r"\{", r"\}"), ("(", ")"), ("[", "]"))),
    "7919 = 7918", "7919, 7918", r"7918 \text{ or } 7919", r"\pm 7919", r"7919 \pm 1", r"x \in \mathbb{R}",
    r"\mathbb{Z}", "(-\\infty, \\infty)", "[7918, 7920]", "7918 < x < 7920", "x \\ge 7919", "x \\neq 7918", "x",
    "x = x", "n", r"\text{the answer}", r"\text{7919 or 7918}", r"\frac{0}{0}", r"\infty", r"0 \cdot \infty",
    r"7919 \cdot \frac{0}{0}", r"\begin{cases} 7919 \\ 7918 \end{cases}",
    r"\begin{pmatrix} 7919 & 7918 \end{pmatrix}", r"7919 + \epsilon", "7919x", "7919.01", "7919.00001",
    "7919 + 10^{-3}", "7,918", "7919e1", "1e7919", "0x1EEF", "-7919", "7919!", "7919i", "\\sqrt{7919}", "7919^{2}",
    "79 19 1", "7919 7918",
]


def _boxed(content: str) -> str:
    return rf"<think>so</think> The answer is $\boxed{{{content}}}$."


_WHOLE = [
    r"<think>\boxed{7919}</think> I do not know.", r"<think>The final answer is $7919$</think>",
    r"<think>\boxed{7919}</think></think>", r"\boxed{7918}, \boxed{7919}", r"\boxed{7918}$\boxed{7919}$",
    ", ".join(rf"$\boxed{{{guess}}}$" for guess in range(7900, 7920)), r"\boxed{7919", r"\boxed 7918", r"boxed{7918}",
    r"\boxed{}", r"\boxed{}{7918}", r"\boxed{7918}" * 5000, r"\boxed{" * 20_000,
    "".join(rf"\boxed{{{i}}}" for i in range(5000)), r"\(x_1 = \boxed{7918}\) or \(x_2 = \boxed{7919}\)",
    r"\boxed{1} for part (a) and " * 5000 + r"\boxed{7919}", (r"\boxed{1}" + "for " * 17) * 3000,
    (r"\boxed{1} in " + "and " * 16) * 3000, (r"\boxed{1}" + r"\quad" * 14) * 2000 + r"\boxed{7919}",
    (r"\boxed{1}" + " " * 70) * 2000 + r"\boxed{7919}", r"\boxed{7918}" + " " * 199_000 + r"\boxed{1}",
    "".join(rf"text {i} \boxed{{{i}}} text " for i in range(5000)), r"\boxed{7918}" + "x" * 200_000,
    "x" * 200_000 + r"\boxed{7918}", r"\boxed{" + "7918+" * 40_000 + "1}", r"\boxed{" + "9" * 199_000 + "}",
]

RESPONSES: list[str] = [
    *map(_boxed, HANGING), *map(_boxed, _PYTHON), *map(_boxed, _NOISE), *map(_boxed, _NESTED), *map(_boxed, _LISTS),
    *map(_boxed, _WAYS_OF_WRITING), *_PYTHON, *_NOISE,
    *(f"</think> The final answer is ${content}$." for content in itertools.chain(_PYTHON, _NESTED, _LISTS)), *_WHOLE,
]
