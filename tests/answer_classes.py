r"""Ways to write one answer: ground truths, answers, and what a mathematician says of them.

``EQUAL`` and ``UNEQUAL`` have the same classes, the list in cw_plugin/rewards/grading.py. An answer that holds a box is
the whole text after ``</think>``, any other one is boxed.
"""

from __future__ import annotations

EQUAL: dict[str, list[tuple[str, str]]] = {
    "several boxes": [
        ("(2,2),(6,2)", r"\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}"),
        ("(4,1),(7,9)", r"$$\boxed{(4, 1)} \text{ for part (a) and } \boxed{(7, 9)}$$"),
        ("3,8", r"\(\boxed{3}\) and \(\boxed{8}\)"),
        ("3,8", r"**\boxed{8}**, and **\boxed{3}**"),
        ("3,8", r"\[\boxed{3} \qquad\text{or}\qquad \boxed{8}\]"),
        ("3,8", r"\boxed{3} if $n$ is even and \boxed{8} if $n$ is odd"),
        ("3,8", r"\boxed{3} (for $n=1$) and \boxed{8} (for $n=2$)"),
        ("3,8", r"\boxed{3} apples and \boxed{8} pears"),
        ("3,8,11", r"$\boxed{3}$, $\boxed{8}$, and $\boxed{11}$"),
        ("p = 31, q = 6", r"\boxed{p = 31} \quad \text{and} \quad \boxed{q = 6}"),
        ("y_{1}=x^2+1, y_{2}=3x", r"\(y_1 = \boxed{x^2+1}\) and \(y_2 = \boxed{3x}\)"),
        (r"\frac{3+\sqrt7}5, \frac{3-\sqrt7}5", r"\boxed{\frac{3+\sqrt7}{5}} \text{and} \boxed{\frac{3-\sqrt7}{5}}"),
        (r"\boxed{3} \text{ and } \boxed{8}", "8, 3"),
        ("(3,4)", "\\boxed{(3,4)}\n\n\\[\\boxed{(3,4)}\\]"),
    ],
    "assignments": [
        (r"x_{1}=\frac{5}{6},\quad x_{2}=-2", r"-2, \frac{5}{6}"),
        ("x_1=5, x_2=-2", "x_1=5, x_2=-2"),
        ("k = 45, n = 2", "45, 2"),
        ("k = 45, n = 2", "(45, 2)"),
        ("k = 45, n = 2", "n=2, k=45"),
        ("k = 45, n = 2", "(k, n) = (45, 2)"),
        ("(k, n) = (45, 2)", "n=2, k=45"),
        ("(k, n) = (45, 2)", "(45, 2)"),
        ("k = 1, m = 2, n = 3", "(1, 2, 3)"),
        ("k = 3, n = 3", "3, 3"),
        ("45, 2", "k = 45, n = 2"),
        ("x = 4, x = 9", "9, 4"),
        ("4, 9", r"x = 4 \text{ or } x = 9"),
        (r"x = \frac{1}{2}, x = \frac{-3 \pm \sqrt{5}}{4}", r"x = \frac{1}{2}, x = \frac{-3 \pm \sqrt{5}}{4}"),
        (r"\frac{-3+\sqrt{5}}{4}, \frac{-3-\sqrt{5}}{4}", r"x = \frac{-3 \pm \sqrt{5}}{4}"),
    ],
    "percent": [
        (r"28\%", "28 percent"),
        (r"28\%", r"28\text{ pct}"),
        (r"28\%", "28 pct"),
        (r"28\%", r"28 \, \text{percent}"),
        (r"28\%", "28"),
        ("50", r"50 \text{ percent}"),
        ("50 percent", "50"),
        (r"50 \text{ per cent}", r"50\%"),
        (r"12.5 \text{ percentage}", "12.5"),
    ],
    "commas": [
        ("1.22", "1,22"),
        ("1,22", "1.22"),
        ("1000.99", "1000,99"),
        ("0.125", "0,125"),
        ("-2.5", r"-2,5 \text{ m}"),
        ("1.22", "1{,}22"),
        ("1222", "1,222"),
        ("1222", "1{,}222"),
        ("31250", r"31\,250"),
        ("31250", "31 250"),
        ("7500000", r"7\ 500\ 000"),
        ("1,22", "22, 1"),
        ("1,22", "1,22"),
    ],
    "rounding": [
        ("928", r"9.28 \times 10^{2}"),
        (r"1.1 \times 10^{2}", "110"),
        ("3", "2.9999999"),
        ("-3", "-2.9999999"),
        ("2.5", "2.4999999"),
    ],
    "inequalities": [
        ("(1,2]", r"1 < x \le 2"),
        (r"x \in (1, 2]", r"1 < x \leqslant 2"),
        (r"1 < x \le 2", "(1, 2]"),
        (r"1 < x \le 2", r"x \in (1, 2]"),
        (r"1 < x \le 2", r"2 \geq x > 1"),
        (r"[3, \infty)", r"x \ge 3"),
        (r"t \ge 3", r"[3, +\infty)"),
        (r"(-\infty, 1) \cup (2, \infty)", r"x < 1 \text{ or } x > 2"),
        (r"x < 1 \text{ or } x > 2", r"x \in (-\infty, 1) \cup (2, \infty)"),
        (r"(\frac{1}{2}, 3)", r"x > 0.5 \text{ and } x < 3"),
        (r"(-\infty, 3) \cup (3, \infty)", r"x \neq 3"),
    ],
}  # fmt: skip

UNEQUAL: dict[str, list[tuple[str, str]]] = {
    "several boxes": [
        ("(6,2)", r"\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}"),
        ("8", r"\(\boxed{3}\) and \(\boxed{8}\)"),
        ("3", r"\(\boxed{3}\) and \(\boxed{8}\)"),
        ("8", r"\boxed{3} \text{ for part (a) and } \boxed{8}"),
        ("8", r"$x = \boxed{3}$ or $y = \boxed{8}$"),
        ("3,8", r"\boxed{3} \text{ and } \boxed{9}"),
        ("3,8", r"\boxed{3} is wrong and \boxed{8} is right"),
        ("3,8", r"\boxed{3}. That is wrong, so the answer is \boxed{8}"),
        (r"\boxed{3} \text{ and } \boxed{8}", "8"),
    ],
    "assignments": [
        ("k = 45, n = 2", "2, 45"),
        ("k = 45, n = 2", "(2, 45)"),
        ("k = 45, n = 2", "(k, n) = (2, 45)"),
        ("k = 1, m = 2, n = 3", "(1, 3, 2)"),
        ("k = 45, n = 2", "k = 2, n = 45"),
        ("k = 45, n = 2", "45"),
        ("k = 45, n = 2", "k = 45"),
        ("2", "k = 45, n = 2"),
        ("k = 45, n = 2", r"\frac{"),
        ("x_1=5, x_2=-2", "5, 2"),
        ("x_1=5, x_2=-2", "5"),
        (r"\frac{-3+\sqrt{5}}{4}", r"\frac{-3 \pm \sqrt{5}}{4}"),
        ("x = 4", "y = 4"),
    ],
    "percent": [
        (r"28\%", "29 percent"),
        (r"28\%", "0.28"),
        ("50", r"5 \text{ percent}"),
    ],
    "commas": [
        ("1.22", "1, 22"),
        ("1.22", "(1,22)"),
        ("1.22", r"\{1,22\}"),
        ("1.22", "1,23"),
        ("1.22", "1,22,1"),
        ("122", "1,22"),
        ("1.222", "1,222"),
        ("1, 22", "1.22"),
        ("(1,22)", "1.22"),
        ("1", "1,22"),
        ("22", "1,22"),
        ("0", "7 000"),
        ("31250", "31 251"),
    ],
    "rounding": [
        ("3", "2.9999"),
        ("0", "0.0000001"),
        (r"\frac{1}{3}", "0.33"),
        ("1000000", "1000000.1"),
    ],
    "inequalities": [
        ("(1,2]", "1 < x < 2"),
        ("(1,2]", r"1 < x \le 3"),
        ("(1,2]", r"x \le 2"),
        (r"1 < x \le 2", "[1, 2]"),
        ("x > 3", "y > 3"),
        (r"(-\infty, 1) \cup (2, \infty)", "x > 2"),
        (r"(-\infty, 1) \cup (2, \infty)", "1 < x < 2"),
        ("(-2, 2)", "x^2 < 4"),
        ("2", "x > 2"),
    ],
}


def cases() -> list[tuple[str, str, str, bool]]:
    """All as (class, ground truth, response, whether it is right)."""
    return [
        (kind, ground_truth, response(answer), right)
        for right, classes in ((True, EQUAL), (False, UNEQUAL))
        for kind, pairs in classes.items()
        for ground_truth, answer in pairs
    ]


def response(answer: str) -> str:
    return "<think>so</think> " + (answer if r"\boxed" in answer else rf"The answer is $\boxed{{{answer}}}$.")
