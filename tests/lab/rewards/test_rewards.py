"""The reward: what it gives for an answer and for the format, and which ground truths it refuses."""

import itertools
import re
import sys
from decimal import Decimal

import answer_classes
import numpy as np
import pytest
import tokenizers
from boxed_answers import BOXED, grade_all
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import COPIES
from transformers import PreTrainedTokenizerFast

from cw_plugin.errors import OptionsError
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards import compute_score, grading, ground_truth_problem, number_text
from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.pool import shared_pool
from cw_plugin.lab.rewards.rewrites import REWRITES, rewritten
from cw_plugin.lab.rewards.think import matched
from cw_plugin.lab.rewards.trl import trl_rewards


def accuracies(gold: object, text: str) -> tuple[float, ...]:
    """As open-rs grades in training and in evaluation."""
    return tuple(compute_score("x", text, gold, extraction=how)["acc"] for how in ("training", "evaluation"))


def test_numbers_are_ground_truths_too():
    for gold, answer in [
        (42, "42"), (42.0, "42"), (10, "10"), (100.0, "100"),
        (-0.5, r"-\frac{1}{2}"), (1e-07, "10^{-7}"), (6.02e23, r"6.02 \times 10^{23}"),
        (10**400, "1" + "0" * 400), (Decimal("1e400"), "10^{400}"),
        (np.int64(42), "42"), (np.float32(0.1), "0.1"), (Decimal("12.50"), "12.5"), (0.75, r"\frac{1.5}{2}"),
    ]:  # fmt: skip
        assert accuracies(gold, BOXED % answer) == (1.0, 1.0)
    assert accuracies(42.0, BOXED % "43") == accuracies(10**400, BOXED % ("1" + "0" * 399 + "1")) == (0.0, 0.0)
    assert [number_text(value) for value in (10, 100.0, 1e-7, True, None)] == ["10", "100", "1e-07", None, None]


@pytest.mark.parametrize("kind", answer_classes.EQUAL | answer_classes.UNEQUAL)
def test_a_mathematician_would_agree(kind):
    cases = [case[1:] for case in answer_classes.cases() if case[0] == kind]
    assert [case for case in cases if accuracies(case[0], case[1]) != (case[2], case[2])] == []


# A ground truth, and an answer that is right only with the rewrite.
EXAMPLES = {
    "point without decimals": ("5", r"5.\text{ cm}"),
    "Unicode": ("x^2", "x\xb2"),
    "Markdown": ("34", "**34**"),
    "digits in groups": ("31250", r"31,\!250"),
    "layout": ("t(0,4]", r"t\left(0,4\right]"),
    "braces around all of it": (r"50\%", r"\mathbf{50\%}"),
    "product": (r"\frac{3}{4}", r"1(\frac{3}{4})"),
    "equations in an environment": ("5", r"\begin{aligned} x &= 5 \end{aligned}"),
    "ohm": ("5", r"5\,\Omega"),
    "sign in braces": ("-3", "{-}3"),
    "arrow": (r"A \to B", r"A \rightarrow B"),
    "all real numbers": (r"\mathbb{R}", "all reals"),
    "both signs": (r"(0,\pm5)", "(0,5),(0,-5)"),
    "brackets": (r"\{1,2\}", r"\lbrace 1,2\rbrace"),
    "colon after words": ("5", r"\text{speed}: 5"),
    "upright without braces": ("2e", r"2{\rm e}"),
    "number and unit in a text": ("5", r"\text{5 cm}"),
    "union": (r"(0,1)\cup(2,3)", r"(0,1)\bigcup(2,3)"),
    "colon": ("3:30", "3{:}30"),
    "slanted fraction": ("0.5", r"\nicefrac{1}{2}"),
    "binomial": (r"\binom{10}{3}", r"{10 \choose 3}"),
    "unit in brackets": ("5", r"5(\mathrm{cm})"),
    "dollar": (r"\$36", "36 dollars"),
    "formula": ("$125$ miles", "125"),
    "upright": ("2e", r"2\mathrm{e}"),
    "units in several commands": (r"5\text{m/s}", r"5\mathrm{m}/\mathrm{s}"),
    "function": (r"\ln 2", "ln(2)"),
    "inverse function": (r"\arcsin(1/3)", "asin(1/3)"),
    "fraction": (r"\pi/2", r"\frac\pi 2"),
    "root": (r"2\sqrt{13}", "2\u221a13"),
    "fraction or root without braces around it": (r"\sqrt{\frac12}", r"\sqrt\frac12"),
    "letter": (r"\gamma^2-1", r"(\gamma-1)(\gamma+1)"),
    "dots after a whole number": (r"\{2,4\ldots\}", r"\{2,4,\ldots\}"),
    "dots": (r"1,\ldots,9", r"1,\dots,9"),
    "letter T": ("A^T", r"A^\top"),
    "prime": (r"y^{\prime}", "y'"),
    "power": ("x^2", "x**2"),
    "empty set": (r"\emptyset", r"\varnothing"),
    "degree": ("60", r"60\degree"),
    "repeating decimal": (r"\frac{1}{6}", r"0.1\overline{6}"),
    "power of ten": ("5000000", "5 million"),
    "sign in words": ("-5", r"\text{negative }5"),
    "list in words": ("3, -5", r"a = 3 \lor a = -5"),
    "mixed number": (r"\frac{5}{4}", "1 1/4"),
    "tuple of letters": ("(x, y) = (1, 2)", "y = 2, x = 1"),
    "unequal to several": (r"\mathbb{R} \setminus \{1,2\}", r"x \ne 1, 2"),
    "set of one point": ("(1,2)", r"\{(1,2)\}"),
    "set of solutions": ("x>2", r"\{x \mid x>2\}"),
    "function of one": (r"\operatorname{tr}(A)", r"\mathrm{tr}(A)"),
    "percent": ("0.28", r"28\text{ percent}"),
    r"unit without \text": ("5 people", "5"),
    "choice": ("B", r"\text{Option B}"),
    "base": ("101_2", "(101)_2"),
}


@pytest.mark.parametrize("place", range(len(REWRITES)), ids=lambda place: REWRITES[place].name)
def test_each_rewrite_changes_the_verdict_of_its_example(place, monkeypatch):
    rewrite = REWRITES[place]
    ground_truth, answer = EXAMPLES[rewrite.name]
    for kept, verdict in ((REWRITES[:place] + REWRITES[place + 1 :], 0.0), (REWRITES, 1.0)):  # the caches end whole
        monkeypatch.setattr("cw_plugin.lab.rewards.rewrites.REWRITES", kept)
        grading.read.cache_clear()
        grading._is_right.cache_clear()
        assert grading.grade(ground_truth, BOXED % answer, "evaluation")[0] == verdict


# What "The answer is" leads to another number than 5, and what to 5.
NOT_FIVE = (
    "5 dozen, 5 squared, 5 factorial, 5 pi, 5 choose 2, 5 mod 7, 5 halves, 5 or more, 5 and a half, 5 thousandths, "
    "- 5, minus 5, negative 5, > 5, x > 5, x < 5, x + 5, 5 + x, n/5, 5x + 3, 3+5i, 5+3i, at least 5, more than 5, "
    "not 5, less than 5, twice 5, the square root of 5, the floor of 5, divisible by 5, sqrt 5, log 5, 5 and 6, "
    "5 to 6, 5 times 3, 5 divided by 2, 5 multiplied by 3, 5 percent of 7, 5 per mille, 5 million, "
    "5 hours and 30 minutes, 5 feet 6 inches"
)
FIVE = (
    "5 because 3 to 8 is 5 steps; exactly 5.; equal to 5 cm.; 5 apples.; 5, not 6.; 5 (not 6).; 5 and we are done.; "
    "5 - a nice number.; 5, since x > 4.; 5, more than 4.; 5, the square root of 25.; 5, as 2x is 10.; x = 5.; "
    "=> 5; 5. Note that 3 dozen is 36.; a total of 5.; 8 - 3 = 5.; 5 so we stop."
)

STATED = (
    "3:30; 2 + i; 5 dozen; x > 5; 3 + 5i; 2x + 5; x^2 - 5x - 24; a + b; 15(3x + 2); (1, 2); -2x + 3; 2020-05-06; 2, -2"
)
LISTS = ("$2$ and $-2$", "$2$ or $-2$", "$-2$ and $3$", "$2$, $6$ and $7$", "$x = 2$, $y = 3$")
PRECISE = (
    "3.14 to 2 decimal places", "$3.14$ to 2 decimal places", "$3.14$ to $3$ significant figures",
    "$3.14$, to $3$ significant figures", "$3.14$, and $1$ is no solution", "3.14, and 1 is no solution",
)  # fmt: skip


def with_marks(said: str) -> tuple[str, ...]:
    """A phrase as it is, and if it has words, with its numbers between dollar signs, and between brackets of LaTeX."""
    if not re.search("[a-z]{2}", said):
        return (said,)
    return said, *(re.sub(r"\d+", marked, said) for marked in (r"$\g<0>$", r"\\(\g<0>\\)", r"$$ \g<0> $$"))


# Sentences that give each ground truth, and sentences that do not.
RIGHT = {
    r"2\sqrt{13}": ["The answer is 2\u221a13."],
    "60": ["The angle is 60\u00b0.", "The answer is 60 minutes, 1 hour."],
    "5": [
        "\u7b54\u6848\u662f5\u3002", "\u7b54\u6848:**5**", "\u6240\u4ee5\u7b54\u6848\u662f**5**\u3002",
        "The answer is 5 - I checked it.", "The speed is 5 m/s.", "There are 5 couples.", "We need at least 5 coins.",
        "The square root of 25 is 5.", "x is more than 3, so the answer is 5.", "Since n > 4 we get 5.", "Answer - 5",
        "The answer:\n- 5", "> The answer is\n> 5", "<b>so</b> 5", "As 2x + 1 = 11, x = 5",
        "A minus sign is lost; the answer is 5", "The answer is 5, 6 of which are red.",
    ],
    "-5": [
        "\u7b54\u6848\uff1a-5", "The answer is negative $5$.", "The answer is negative 5.", "The answer is minus 5",
        "The answer is - 5", "So x = - 5",
    ],
    "12": [
        "\u6240\u4ee5\u4e00\u5171\u670912\u5143\u3002", "The answer is 12 cm\xb2.", "The answer is **12 m\xb2**.",
        "The answer is 12 \u20ac.", "The answer is 12, and 3 of them are red.",
        "It leaves at 3:30 PM with 7 or 8 people. So it takes 12 minutes.",
    ],
    "3xy^2": ["The answer is 3 xy\xb2."],
    "18": [r"The answer is \$18.", r"She makes **\$18** every day."], "70000": [r"The answer is \$70,000."],
    "35000": ["The answer is 3.5 \xd7 10^4.", "The answer is **3.5 \xd7 10\u2074**."],
    "3.5, 4.5": ["The values are 3.5 and 4.5."],
    "x^2+12": ["The answer is x\xb2 + 12."], "12.5": ["The answer is 12.5%."],
    "7, 8": ["\u7b54\u6848\u662f7\u548c8\u3002", "The solutions are 7 and 8."],
    "2, 7": ["\u6240\u4ee5\u7b54\u6848\u662f $2$ \u548c $7$\u3002"], "7": ["The answer is <b>7</b>."],
    "7, 9, 12": ["The solutions are 7, 9, and 12."],
    "0.5": ["<answer>The answer is 1/2.</answer>"],
    "6": ["<answer>5</answer> No, I forgot one: <answer>6</answer>"],
    "34": [
        "The answer is **34**.", "**Answer**:34", "### Answer\n\n***34***", "**The answer is 34**",
        "The final answer is **$34$**.", "The answer is `34`.",
    ],
    "-34": ["The answer is __-34__, not 35."],
    r"\frac{5}{4}": ["The answer is **1 1/4**."],
    "3, 4": ["\u7b54\u6848\u662f3\u62164\u3002"],
    "5000000": ["The answer is $5$ million."],
    "5, -5": ["The answer is -5 or 5."],
    "-5, 6": ["The answer is -5 and 6."],
    "150": ["The answer is 150 cents, 1 dollar and 50 cents."],
    "x = 12": [r"The answer is $x = 12$, which is $3 \times 4$."],
    "2x": ["We get 2x. That is the answer.", "To answer it, 3 steps give 2x. That is the answer."],
    "7/2": ["7 / 2 = 3 1/2"],
    "24": ["The rectangle has a perimeter of 24 units."],
    "1776": ["It was signed on July 4, 1776."],
    "20": ["<answer>The answer is 20 days"],
    "2x+1": ["The answer is f(x) = 2x+1"],
    r"-\frac54": ["The answer is -5/4."],
    "8": ["The answer is 3 + 5."],
    r"\sqrt5": ["The answer is sqrt 5", "The answer is sqrt(5)."],
}  # fmt: skip
WRONG = {
    "2": [
        "The answer is 2x.", "The answer is 2 + i.", "We get 2x. That is the answer.", "The answers are 2, -2.",
        "The answer is (1, 2).",
    ],
    "5": [
        r"\boxed{5} <answer>The answer is 6.</answer>",
        "\u6240\u4ee5\u7b54\u6848\u662f**6**\u3002", "We have $x+3=8$. The answer is 5 dozen.",
        "The answer is 5 dozen, since $x=5$.", "The answer is -5 or 5.", "\u7b54\u6848\u4e0d\u662f5\u3002",
        "\u7b54\u6848\u5927\u4e8e5\u3002", "\u7b54\u6848\u81f3\u5c11\u662f5\u3002",
        "\u7b54\u6848\u662f4\u52305\u4e4b\u95f4\u3002",
    ],
    "12": [
        "The answer is 12M.", "The answer is x\xb2 + 12.", "The solutions are 7 and 12.", "They are 7, 9, and 12.",
        "The solutions are x = 7 or x = 12.", "x = 7 \u2228 x = 12",
    ],
    "0.5": ["The answer is 0.5%."],
    "7": [r"The answer is **7**$\sqrt{2}$.", "\u7b54\u6848\u662f $2$ \u6216 $7$\u3002"],
    "34": ["The answer is **35**."],
    "8": [
        "The answer is 2**3.", "\u7b54\u6848\u662f7\u548c8\u3002",
        "\u7b54\u3048\u306f7\u307e\u305f\u306f8\u3067\u3059\u3002",
    ],
    "4": ["\u7b54\u6848\u662f3\u62164\u3002", "The answer is 5, more than 4."],
    "3": ["The answer is 3 or 4.", "The answer is 3:30.", "The answer is 3+5i", "The answer is 3 - i."],
    "-5": ["The answer is -5 and 6."],
    "60": ["The answer is 5 dozen."],
    "2x": ["The answer is 2x + 5."],
    "15": ["The answer is 15(3x + 2)."],
}  # fmt: skip


def test_answers_in_sentences():
    cases = [(gold, text, 1.0) for gold, texts in RIGHT.items() for text in texts]
    cases += [(gold, text, 0.0) for gold, texts in WRONG.items() for text in texts]
    for phrases, right in ((NOT_FIVE.split(", "), 0.0), (FIVE.split("; "), 1.0)):
        cases += [("5", f"The answer is {marked}", right) for phrase in phrases for marked in with_marks(phrase)]
    for answer in LISTS:
        cases += [(answer.replace("$", ""), f"The answer is {answer}.", 1.0), ("2", f"The answer is {answer}.", 0.0)]
    cases += [(said, f"The answer is {said}.", 1.0) for said in STATED.split("; ")]
    cases += [("3.14", f"The answer is {said}.", 1.0) for said in PRECISE]
    assert [case for case in cases if compute_score("x", case[1], case[0])["acc"] != case[2]] == []


EXPRESSIONS = st.sampled_from(
    ["7", "-3", "12345", "0.25", r"\frac{3}{8}", r"2\sqrt{13}", r"\frac{3\pi}{4}", "(3, -7)", r"\{2, 5\}", "3, 8",
     "x^2+3x", r"(-\infty, 3]", r"\ln 2", "e^{2x}", r"\text{east}", "5 people", r"20\text{ days}", r"28\%", "101_2",
     "y = 3x + 1"]
)  # fmt: skip


@settings(max_examples=60)
@given(gold=EXPRESSIONS, other=EXPRESSIONS, extra=st.sampled_from(["7", "-", "k", "+ 1", "!"]), first=st.booleans())
def test_an_answer_equals_itself_and_nothing_more(gold, other, extra, first):
    assert accuracies(gold, BOXED % gold) == accuracies(gold, BOXED % rewritten(gold)) == (1.0, 1.0)
    assert accuracies(gold, BOXED % other) == 2 * (float(gold == other),)
    longer = f"{extra}{gold}" if first and extra in "7-k" else f"{gold}{extra}"
    if (gold, longer) not in {(r"\{2, 5\}", r"k\{2, 5\}")}:
        assert accuracies(gold, BOXED % longer) == (0.0, 0.0), (gold, longer)


def test_minutes_or_a_period_of_zero_are_no_error():
    for ground_truth, answer in (("2:3", "20:00"), ("0.6", r"0.5\overline{0}")):
        assert grading.grade(ground_truth, BOXED % answer, "evaluation")[0] == 0.0


def test_numbers_are_rounded_as_in_open_rs_and_never_by_more_than_a_thousandth():
    for gold, answer, training, evaluation in [
        ("0.1234561", "0.1234564", 1.0, 1.0),  # 6 decimals
        ("0.123456", "0.123459", 0.0, 1.0),  # 5 decimals
        ("0.12346", "0.12347", 0.0, 0.0),
        ("0.0100049", "0.010003", 0.0, 1.0),  # 0.01000 both, and 0.2 thousandths apart
        ("0.0010049", "0.001003", 0.0, 0.0),  # 0.00100 both, but 1.9 thousandths apart
    ]:
        assert accuracies(gold, BOXED % answer) == (training, evaluation), (gold, answer)


def test_extraction_follows_open_rs():
    for gold, text, training, evaluation in [
        ("27", r"The final answer is $27$.", 1.0, 1.0),  # LaTeX after the words that open-rs looks for
        ("27", "The final answer is 27.", 0.0, 1.0),  # a plain number is for lighteval only
        ("27", "So it is $27$ then", 0.0, 1.0),
        ("27", r"\boxed{27}, and not $28$", 1.0, 1.0),  # the box comes first
        ("27", r"\boxed{28}, and not $27$", 0.0, 0.0),
        ("27", r"\boxed{28}? No. So it is \boxed{27}", 1.0, 1.0),  # the last of several
        ("27", r"\boxed{27}? No. So it is \boxed{28}", 0.0, 0.0),
        ("27", r"$\boxed{27}$ and $\boxed{28}$", 0.0, 0.0),  # a list is one answer
        ("27", r"<think>a</think>\boxed{27}</think> I do not know", 0.0, 0.0),
        ("27", r"<think>\boxed{27}</think> I give up", 0.0, 0.0),  # boxed while thinking is a draft
        ("27", r"still thinking, \boxed{27} perhaps", 1.0, 1.0),  # without tags: as open-rs and lighteval, all counts
        ("27", r"<think>Perhaps \boxed{27}. Let me", 0.0, 0.0),  # never closed: a draft
        ("27", r"<think>so</think> \boxed{27} <think>or \boxed{28}", 1.0, 1.0),
        ("27", r"The final answer is $\frac{27}{$.", 0.0, 0.0),  # no other number takes its place
        ("1e-8", "The final answer is $1e-8$.", 1.0, 1.0),  # read as in a box
        ("27", "The final answer is $26 + 1$.", 0.0, 1.0),
        ("27", r"\boxed{27} no, \boxed{28", 0.0, 0.0),  # given up, and cut off
        ("x=5", r"\boxed{ab=5}", 0.0, 0.0),  # a product, and no name
        ("5", r"\boxed{\text{AREA}: 5\text{ cm}}", 1.0, 1.0),  # a name in capitals
        ("1:12", r"\boxed{\frac{1}{12}}", 1.0, 1.0),  # a ratio in lowest terms, and no time
        ("f(x)=2x", r"\boxed{f(x)=2x\text{for all }x}", 1.0, 1.0),
        ("5050", r"The final answer is $\sum_{k=1}^{100} k$.", 0.0, 0.0),  # that restates the question
        ("50%", "So it is 50% then", 0.0, 1.0),
        ("0.5", "So it is 50% then", 0.0, 1.0),
        ("(2,32), (8,18)", "The final answer is $(x, y)=(2,32)$ or $(x, y)=(8,18)$.", 1.0, 1.0),
    ]:
        assert accuracies(gold, text) == (training, evaluation), text
    filler = "and so on, " * 30_000  # more than a worker gets, and far more than is searched for a number
    for text, right in [
        (rf"\boxed{{28}} {filler} \boxed{{27}}", 1.0),
        (rf"\boxed{{27}} {filler} \boxed{{28}}", 0.0),
        (f"The final answer is $28$. {filler} The final answer is $27$.", 1.0),
        (f"The final answer is $27$. {filler}", 0.0),
    ]:
        assert accuracies("27", text) == (right, right), (text[:30], right)
    plain = "The final answer is 27."  # by default, the data source says which
    assert compute_score("knoveleng/open-rs", plain, "27")["acc"] == 0.0
    assert compute_score("HuggingFaceH4/aime_2024", plain, "27")["acc"] == 1.0


def test_a_prompt_that_opens_think_makes_a_draft_of_what_stands_before_its_end():
    for text, accuracy in [(r"Perhaps \boxed{5}. Let me", 0.0), (r"so</think> \boxed{5}", 1.0), ("It is $5$.", 0.0)]:
        assert compute_score("x", text, "5", opens_think=True)["acc"] == accuracy
    assert compute_score("x", r"\boxed{5}", "5", opens_think=False)["acc"] == 1.0


def test_what_is_wrong_with_a_ground_truth():
    for value, why in [
        (None, "is empty (None)"),
        (" \n", "is empty (' \\n')"),
        (True, "True (bool)"),
        (b"42", "b'42' (bytes)"),
        (float("nan"), "nan (float)"),
        (Decimal("nan"), "NaN') (Decimal)"),
        (np.float32("inf"), "must be text or a finite number"),
        (["42"], "is a list, ['42']; write it as one text"),
        ({"a": 1}, "is a dict"),
    ]:
        with pytest.raises(DataError, match="data_source is 'some/data'") as error:
            compute_score("some/data", BOXED % "42", value)
        assert why in str(error.value)
        assert why in ground_truth_problem(value) == ground_truth_problem(value, parse=False)
    assert [ground_truth_problem(value) for value in ("27", 27.0, r"\frac{1}{2}", "50%", "101_2")] == [None] * 5
    for text, why in [
        ("t(0,4]", "cannot be read by math-verify"),
        ("nan", "there is no answer"),
        ("None", "there is no answer"),
        ("sinc(x) + 1", "the word sinc"),
        (r"y^{\prime} + 2y", "the name of a variable"),
        (r"a+b \approx c", "the letter a, which math-verify leaves out"),
    ]:
        assert why in ground_truth_problem(text), text
    for text in ("e^{2 i t}", r"\text{east}", "E_{1},E_{2}", r"\int_0^1 f(x) dx", r"\frac{dy}{dx} = 3"):
        assert ground_truth_problem(text) is None, text
    slow = ground_truth_problem(r"\binom{10^{9}}{5 \cdot 10^{8}}")  # on a busy machine, the wall-clock limit ends it
    assert "it took more than 2" in slow


def test_an_error_that_verl_swallows_is_said_once(capsys, monkeypatch):
    """verl's agent loop logs what a reward raises in a worker's log, marks the prompt as failed, and goes on."""
    monkeypatch.setitem(sys.modules, "verl", sys)
    monkeypatch.setattr("cw_plugin.lab.rewards._said", set())
    for _ in range(3):
        with pytest.raises(DataError):
            compute_score("x", "5", None)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("cw_plugin: the reward failed")
    with pytest.raises(OptionsError):
        compute_score("x", "5", "5", time_limit=0)
    assert "time_limit must be > 0" in capsys.readouterr().err
    monkeypatch.setattr("cw_plugin.lab.rewards._said", set())
    monkeypatch.delitem(sys.modules, "verl")
    with pytest.raises(DataError):
        compute_score("x", "5", None)
    assert capsys.readouterr().err == ""  # of another host, what it says would be wrong
    assert "is empty (None)" in said and "data_source is 'x'" in said


def test_format():
    for response, opened, not_opened in [  # matched if the template opened <think>, and if it did not
        ("so\n</think>\n5", 1, 0),
        ("  <think>so</think>", 0, 1),
        ("5", 0, 0),
        ("<think>so", 0, 0),
        ("a</think>b</think>c", 0, 0),
        ("<think>a<think>b\n</think>\nc", 0, 0),
        ("hm <think>a\n</think>\nc", 0, 0),
        ("</think><think>", 0, 0),
    ]:
        assert (matched(response, True), matched(response, False)) == (opened, not_opened)
        assert matched(response, None) == max(opened, not_opened)


@pytest.mark.parametrize(("ending", "opens"), [("<think>\n", True), ("", False)])
def test_the_chat_template_settles_who_opens(tmp_path, ending, opens):
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, unk_token="<unk>")
    generation = "{% if add_generation_prompt %}<assistant>" + ending + "{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}" + generation
    tokenizer.save_pretrained(tmp_path)
    responses = "<think>a</think>", "a</think>"
    formats = [compute_score("x", response, "5", model_path=str(tmp_path))["format"] for response in responses]
    assert formats == trl_rewards(str(tmp_path))[1](responses) == ([0.0, 1.0] if opens else [1.0, 0.0])
    for settled in (True, False):  # a keyword counts more than the template
        score = compute_score("x", "a</think>", "5", model_path=str(tmp_path), opens_think=settled)
        assert [score["format"]] == trl_rewards(str(tmp_path), settled)[1](["a</think>"]) == [float(settled)]


def test_score_is_the_weighted_sum_and_the_keys_never_change():
    for response, acc, fmt, pred in [
        (BOXED % "27", 1.0, 1.0, "27"),
        (r"\boxed{27}", 1.0, 0.0, "27"),
        ("<think>so</think> no idea", 0.0, 1.0, ""),
        (None, 0.0, 0.0, ""),
    ]:
        result = compute_score("x", response, "27", accuracy_weight=2.0, format_weight=0.5)
        assert result == {"score": 2.0 * acc + 0.5 * fmt, "acc": acc, "format": fmt, "pred": pred}
        assert [type(value) for value in result.values()] == [float, float, float, str]
        assert compute_score("x", response, "27")["score"] == acc + fmt

    for option in ("extraction", "time_limit"):
        with pytest.raises(OptionsError, match=option):
            compute_score("x", "5", "5", **{option: 0})


def test_boxes():
    assert final_boxed(r"\boxed{1} is half of it. We get \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert final_boxed(r"\boxed{\left\{1, 2\right.}") == r"\left\{1, 2\right."
    assert final_boxed(r"\fbox {7}") == "7"
    assert final_boxed(r"\\boxed{5}") == "5"  # with its backslash escaped once more
    assert final_boxed(r"\boxed{5 \\}") == r"5 \\"
    assert final_boxed(r"\boxed{a \boxed{5}}") == "5"
    assert final_boxed(r"\boxed{5} and \boxed{6") == final_boxed(r"\boxed{6") == ""
    assert final_boxed(r"{ \boxed{5}") == final_boxed(r"\boxed{a \boxed{5}") == "5"
    assert final_boxed(r"\frac{1}{\boxed{3}}") == "3"
    assert final_boxed("no box") is None
    assert final_boxed(r"\boxed{1}, \boxed{234}") == "1, 234"  # not the number 1,234
    assert final_boxed(r"\boxed{1}" + r" \quad" * 14 + r"\boxed{2}") == "1, 2"  # however much space is between
    assert final_boxed(r"\boxed{5} and \boxed") == ""  # cut off
    assert final_boxed(r"\boxed{4}. So $\fbox 5$") == final_boxed(r"\boxed{a \boxed5}") == "5"
    assert final_boxed(r"\boxed{4}. Write \boxed and it") == final_boxed(r"\boxed{4}. \boxed Answer") == "4"
    assert final_boxed(r"first $\boxed{5}$. So $\boxed{6}$") == "6"  # no list: a sentence ends between them
    for between, answer in (("a" * 9, "1, 2"), ("a" * 10, "2"), ("," + "a" * 68, "1, 2"), ("," + "a" * 69, "2")):
        assert final_boxed(rf"\boxed{{1}}{between}\boxed{{2}}") == answer  # math-verify's limits of a list
    assert final_boxed(r"first \boxed{1}. Now come $\boxed{2}$, $\boxed{3}$ and $\boxed{4}$") == "2, 3, 4"


@pytest.mark.slow
@pytest.mark.skipif(not COPIES.is_dir(), reason="needs local copies of the benchmarks, see README")
def test_the_golds_of_the_benchmarks():
    """Each gold equals itself in a response, and none is earned by the next row's different gold."""
    golds = answer_classes.benchmark_answers(COPIES)
    assert len(golds) == 1517
    graded = grade_all(shared_pool(), [(gold, BOXED % gold, "evaluation") for _, _, gold in golds])
    assert [gold for gold, acc in zip(golds, graded, strict=True) if acc == 0.0] == []

    pairs = [(a, b) for a, b in itertools.pairwise(golds) if a[0] == b[0] and rewritten(a[2]) != rewritten(b[2])]
    graded = grade_all(shared_pool(), [(gold, BOXED % other[2], "evaluation") for (_, _, gold), other in pairs])
    earned = [(a[0], a[1], a[2], b[2]) for (a, b), acc in zip(pairs, graded, strict=True) if acc == 1.0]
    assert earned == [("math500", 22, "5", "x=5")]  # which is the same answer
