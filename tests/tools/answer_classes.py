r"""Ways to write one answer: ground truths, answers, and what a mathematician says of them.

``EQUAL`` and ``UNEQUAL`` have classes, and for each ground truth a list of answers. An answer that holds a box, tags or
a sentence is the whole text after ``</think>``, any other one is boxed.
"""

import json
from pathlib import Path

from cw_plugin.lab.data.answers import final_answer
from cw_plugin.lab.data.sources import BENCHMARKS

Answers = dict[str, dict[str, list[str]]]

# Words that make another number of the one before or after them.
AFTER = (
    "squared, cubed, factorial, doubled, halved, halves, and a half, quarters, thirds, fourths, fifths, sixths, "
    "sevenths, eighths, ninths, tenths, elevenths, twelfths, sixteenths, twentieths, hundredths, thousandths, tens, "
    "hundred, thousand, quadrillion, lakh, crore, dozen, pairs, couples, score, gross, at most, or so, mod five, "
    "base five, plus one, minus one, above, tripled, quadrupled"
)
BEFORE = (
    "less than, more than, fewer than, greater than, over, under, up to, below, at least, twice, double, triple, not, "
    "no, none of, never, cannot be, all but, any number except, any excluding, without, anything other than, negative, "
    "minus, square root of, square of, cube of, multiples of, inverse of, reciprocal of, opposite of, floor of, "
    "log of, number of divisors of, sum of the digits of, absolute value of, powers of, conjugate of, half of, "
    "exceeds, beyond, different from, far from, unequal to, divisible by, within, thrice, non-"
)

# fmt: off
EQUAL: Answers = {
    "near a left side with a number": {
        "5": [
            r"1^{\text{st}} \text{ term} = 5", r"100\text{-th digit} = 5", r"10\% \text{ of } 50 = 5",
            r"\text{Grade 9-12}: 5", r"\text{Value of } \frac{x+y}{2} = 5", r"5\text{ KM}", r"5\text{ KG}",
            r"5\text{ US}",
        ],
        "60": [r"1\text{ hour} = 60\text{ minutes}"], "8": [r"3\text{ apples} + 5\text{ apples} = 8\text{ apples}"],
        "14": ["2f(3)=14"], r"\frac56": [r"1 - P(X = 0) = \frac56"], "20": ["2C(5,2) = 20"],
        "30000": ["3\u4e07\u7c73"], "500": ["5\u767e\u7c73"], "5, 6": ["a=b=5, c=6"],
        r"C=12\pi, r=6": [r"C=d=12\pi, r=6"],
    },
    "lists and values of several letters": {
        "x=1, y=1, z=2": ["x=y=1, z=2"], "(1,1)": ["x=y=1"], "x=y=z=0": ["(0,0,0)", "x=0, y=0, z=0"], "5": ["a=b=5"],
        "a=b=2, c=3": ["(2,2,3)", "a=2, b=2, c=3", "a=b=2, c=3"], r"\{(1,2)\}": ["(1,2)"], "3, -5": ["x_1=3, x_2=-5"],
        "x_1=3, x_2=-5": [r"x=3\text{ or }x=-5", "x=-5, x=3"], r"x \ne 1, 2": [r"x \ne 1, x \neq 2"],
        r"\mathbb{R} \setminus \{1,2\}": [r"x \ne 1, 2"], "-2<x<2": ["|x|<2"], r"[-2,4]": [r"|x-1| \le 3"],
    },
    "what the ground truth leaves, written otherwise": {
        r"\frac{3^{100}-1}{2}": [r"\frac12(3^{100}-1)", r"\frac{3^{100}}{2}-\frac12"],
        r"1-(\frac56)^{10}": [r"1-\frac{5^{10}}{6^{10}}"],
    },
    "upright letters and rows of a matrix": {
        "2AB": [r"2\mathrm{AB}", r"2\,\mathrm{AB}"], r"2\mathrm{AB}": ["2AB"],
        "5": ["5\\text{\u5343\u7c73}", r"5\text{ MW}"], "12.5": [r"12.5\text{ percent}"],
        r"\frac54": [r"\text{1 1/4}", r"\text{1 1/4 cups}"], "1234": [r"1\!,\!234"],
        r"\begin{pmatrix}1\\2\end{pmatrix}": [r"\begin{pmatrix}1\\[2pt]2\end{pmatrix}"],
    },
    "signs within brackets": {
        r"\frac{3+\sqrt5}{2}, \frac{3-\sqrt5}{2}": [
            r"\frac{3\pm\sqrt5}{2}", r"x=\frac{3\pm\sqrt{5}}{2}", r"\frac{3\mp\sqrt5}{2}",
        ],
        r"\frac{-1\pm i\sqrt3}{2}": [r"\frac{-1-i\sqrt3}{2}, \frac{-1+i\sqrt3}{2}"],
        r"\frac12\pm\frac{\sqrt5}{2}": [r"\frac{1\pm\sqrt5}{2}"], r"\pm\frac{\sqrt3}{2}": [r"\frac{\pm\sqrt3}{2}"],
        r"\{1\pm\sqrt{5},-2\}": [r"\{-2, 1+\sqrt{5}, 1-\sqrt{5}\}"],
        r"\{\frac{1\pm\sqrt5}{2}, 3\}": [r"\{3, \frac{1-\sqrt5}{2}, \frac{1+\sqrt5}{2}\}"],
        r"(0,\pm5)": ["(0,5),(0,-5)"], r"(\pm1,2)": ["(1,2),(-1,2)", r"(\mp1,2)"], r"(1,-2),(-1,2)": [r"(\pm1,\mp2)"],
        r"(\pm3,0),(0,\pm4)": ["(3,0),(-3,0),(0,4),(0,-4)"],
    },
    "what stands after a layout command": {
        r"\frac12": [r"\color{red}x=\frac{1}{2}"], "y=2x+1": [r"{\color{blue}y=2x+1}"], "x>3": [r"\hspace{1em}x>3"],
        "5": [
            r"\phantom{\frac{1}{2}}5", r"\vphantom{x^{2}+1=}5", r"\textcolor[rgb]{1,0,0}{5}", r"\underline{5}", "{{5}}",
        ],
        r"50\%": [r"\textbf{50\%}", r"\text{50%}", "{{50\\%}}"],
        r"30^\circ": [r"\textbf{30^\circ}", r"\mathrm{30^{\circ}}"],
        "(1,2)": ["{{(1,2)}}"], r"x^{\underline{3}}": [r"x^{\underline{3}}"],
        r"5\text{ m/s}^2": [r"5\,\mathrm{m}/\mathrm{s^2}"], r"5\text{ s}^2": [r"5\,\mathrm{s^{2}}"],
        r"\text{Yes}": [r"\text{Yes: }"], r"(\pm2) \pmod{7}": [r"(\pm 2)\pmod{7}"],
    },
    "names, sets and lists": {
        r"5\text{ cm}": [r"\text{Length: }5\text{ cm}", r"\text{the length is }5\text{ cm}"],
        r"30^\circ": [r"\text{Angle: }30^\circ"], "5": [r"\text{Answer is: }5"], "x>2": [r"\{x\in\mathbb{R} : x>2\}"],
        r"\text{Alice}=3, \text{Bob}=4": [r"\text{Alice: }3, \text{Bob: }4", r"\text{Alice is }3, \text{Bob is }4"],
        r"(2,\infty)": [r"\{x\in\mathbb{R}\mid x>2\}"], r"\mathbb{R}": [r"\text{all real numbers}", "all reals"],
        r"(-\infty,\infty)": [r"\text{All real numbers}"], r"5\text{ m}^2": [r"5\,\mathrm{m^2}"],
        "x=3,y=7": ["The answer is x=3 and y=7."], "2,3": ["The answer is x = 2 or x = 3.", "The answer is x=2, 3"],
        "101_2": ["The answer is 101_2."], "2xy": [r"2\mathrm{xy}"],
    },
    "numbers in letters and cases": {
        r"\frac{(2n)!}{(n!)^2}": [r"\binom{2n}{n}"], "I_3": ["I_{3}"],
        r"\begin{cases}1 & x\le 0\\ 2 & x>0\end{cases}": [r"\begin{cases}1, & x\leq 0\\ 2, & x>0\\\end{cases}"],
    },
    "comparisons without a box": {
        r"x\ge5": ["The answer is x \u2265 5."], r"2\sqrt5": ["The answer is 2*sqrt(5)."],
        r"5\pi": ["The answer is 5pi."],
        r"\{5,6\}": ["The answer is {5, 6}."],
        "x<1 or x>2": [r"x<1\text{ oder }x>2", r"x<1\text{ ou }x>2", "x<1 \u307e\u305f\u306f x>2"],
    },
    "lines of an environment": {
        "x=1, y=2": [
            r"\begin{cases}x=1\\y=2\end{cases}", r"\left\{\begin{array}{l}x=1,\\y=2\end{array}\right.",
            r"$\begin{aligned}x&=1\\y&=2\end{aligned}$",
        ],
        "2,-2": [r"\begin{aligned}x&=2\\x&=-2\end{aligned}"], "5": [r"\begin{align*}x&=10/2\\&=5\end{align*}", r"5 \\"],
        r"\begin{cases}x=1\\y=2\end{cases}": ["(1,2)"],
        r"\begin{pmatrix}1\\2\end{pmatrix}": [r"\left(\begin{array}{c}1\\2\end{array}\right)"],
    },
    "unions": {
        r"(-\infty,1)\cup(2,\infty)": [
            r"(-\infty,1)\text{ or }(2,\infty)", r"(-\infty,1), (2,\infty)", r"(-\infty,1)\bigcup(2,\infty)",
        ],
        "x<1 or x>2": [r"(-\infty,1) \text{ or } (2,\infty)"], "1<x<3": [r"x>1 \wedge x<3", r"x>1 \land x<3"],
        r"p\wedge q": [r"p \wedge q"],
    },
    "number and unit in a text": {
        "5": [r"\text{5 cm}", r"\mathrm{5\,cm^2}", r"\text{speed}: 5", r"\text{Total}: 5\text{ cm}"],
        "2,-2": [r"\text{2 and -2}"], "5000000": [r"\text{5 million}"],
        r"\text{5 hours 30 minutes}": [r"5\text{ hours }30\text{ minutes}"],
    },
    "old LaTeX": {
        "2e": [r"2{\rm e}", r"2\mathrm e"], "2+3i": [r"2+3{\rm i}"], "5": [r"5{\rm\,m/s}", r"\to 5", r"5\notag"],
        r"\{1,2\}": [r"\lbrace 1,2\rbrace"], r"2k\pi, k\in\mathbb{Z}": [r"2k\pi, k\in\mathbf{Z}", r"2k\pi, k\in Z"],
    },
    "names in another order": {
        "f(1)=2, f(3)=4": ["f(3)=4, f(1)=2"], "A=(1,2), B=(3,4)": [r"B=(3,4) \text{ and } A=(1,2)"],
        r"3\text{ red}, 4\text{ blue}": [r"4\text{ blue}, 3\text{ red}", "3, 4"],
        r"\min=1, \max=5": [r"\max=5, \min=1", "1, 5"],
        r"\text{Alice: }3, \text{Bob: }4": [r"\text{Bob}: 4, \text{Alice}: 3", r"\text{Bob}=4, \text{Alice}=3"],
        "x=2": ["x = n = 2"], "f(3)=5": ["5", r"f\left(3\right) = 5"], "5": ["f(3)=5"], "A = b h = 12": ["A = 12"],
        r"3\text{ apples}, 4\text{ pears}": [r"\text{pears}=4, \text{apples}=3"], "x=1, y=3": ["m=1, n=3"],
    },
    "several solutions": {
        r"x=1, y=2 \text{ or } x=3, y=4": [
            "x=3,y=4;x=1,y=2", "x=1, y=2, x=3, y=4", "(1,2),(3,4)", "(3,4), (1,2)", r"(x,y)=(1,2),(3,4)",
            r"(x,y)=(1,2) \text{ or } (x,y)=(3,4)", r"y=2, x=1 \text{ or } y=4, x=3",
            r"\begin{cases}x=1\\y=2\end{cases} \text{ or } \begin{cases}x=3\\y=4\end{cases}",
        ],
        "(1,2),(3,4)": [r"x=1, y=2 \text{ and } x=3, y=4"], "x=1, y=2; x=3, y=4": [r"x=1,y=2 \vee x=3,y=4"],
        r"p=7, q=2 \text{ or } p=5, q=3": ["(7,2), (5,3)", r"q=2, p=7 \text{ or } q=3, p=5"],
        "x=1, x=3, y=2, y=4": ["x=3, x=1, y=4, y=2"], "x=1, y=2; x=3, y=5": ["x_1=1, y_1=2, x_2=3, y_2=5"],
    },
    "letters and their values": {"(1,2)": ["y=2, x=1", "x=1, y=2", "m=1, n=2"], "(1,2,3)": ["z=3, x=1, y=2"]},
    "signs in braces and texts": {
        "-3": ["{-}3", r"\mathord{-}3"], "3:30": [r"3\text{:}30", "03:30"], r"A \to B": ["A\u2192B", r"A\rightarrow B"],
    },
    "units with Greek letters": {
        "5": [
            r"5\,\Omega", r"5\,\text{k}\Omega", r"5\,\mu\text{m}", r"5\,\mathrm{k\Omega}", "5 \u03a9",
            r"5\,\frac{\mathrm{kg}\cdot\mathrm{m}}{\mathrm{s}^2}",
        ],
        r"2\Omega+3": [r"3+2\Omega"],
    },
    "near a new reading": {
        "2x": [r"\mathrm{2 x}"], "2i": [r"\mathrm{2\,i}"], r"2\pi": [r"\mathrm{2 \pi}"], "6+i": [r"\text{6 + i}"],
        "(45,2)": ["(n,k)=(45,2)", "n=45, k=2"], "(2,1)": ["(t,s)=(2,1)"], "(4,3)": ["r=4,h=3"], "(3,5)": ["a=3, B=5"],
        "x=1,2": ["x=2,1"], "x = p, q": ["x = q, p"], "3,5": ["f(2)=3, f(3)=5"],
        "5": [
            r"x=\begin{aligned}5\end{aligned}", r"\text{Thus }\begin{aligned}x&=5\end{aligned}", r"R=5\,\Omega",
            r"\text{Number of pairs} = 5", r"5\text{ times}",
        ],
        "x=1, y=2": [r"\begin{cases}x&=1\\y&=2\end{cases}"],
        r"\frac12": [r"\text{Probability of at least one} = \frac12"],
    },
    "restrictions in other words": {
        r"2k\pi, k\in\mathbb{Z}^+": [r"2k\pi, k\in\mathbb{Z}^{+}", r"2k\pi, k\in\mathbb{Z}_{>0}"],
        r"x=2n, n\in\mathbb{Z}_{\ge 0}": [r"x=2n, n\in\mathbb{Z}_{\geq 0}", r"x=2n, n\in\mathbb{Z}_{\ge0}"],
        r"a_n=2^n\ (n\in\mathbb{N}_+)": [r"a_n=2^n\ (n\in\mathbb{N}^*)"],
        r"f(x)=\frac1x, x\in\mathbb{R}\setminus\{0\}": [
            r"f(x)=\frac1x, x \in \mathbb{R} \setminus \{0\}", r"f(x)=\frac1x, x\in\mathbb{R}",
        ],
        r"2k\pi, k\in\mathbb{Z}, k \ge 1": [r"2k\pi, k\in\mathbb{Z}, k > 0"], "3,2": ["a+b=3, ab=2"],
        "(1,2)": ["x_2=2,x_1=1", "Y=2, X=1"], "(1,2,3,4)": ["d=4,c=3,b=2,a=1"],
    },
    "sums and products of roots": {
        r"\sqrt2": ["1.414214", r"\frac{2}{\sqrt2}"], r"\frac{\sqrt6+\sqrt2}{4}": [r"\frac{\sqrt{2+\sqrt3}}{2}"],
        "x^2-2": [r"(x-\sqrt2)(x+\sqrt2)"], r"\frac{\sqrt5-1}{4}": [r"\sin\frac{\pi}{10}"], "2+3i": ["3i+2"],
        r"10^{40}\sqrt2+\pi": [r"\pi+10^{40}\sqrt2"], r"(1,\infty)": ["x>1"], "[0,4]": [r"0\le x\le 4"],
    },
    "functions in upright letters": {
        r"\mathrm{tr}(A)": [r"\operatorname{tr}(A)", r"\text{tr}\left(A\right)"], r"\text{Re}(z)": [r"\mathrm{Re}(z)"],
        "(1,2)": [r"\text{Point}(1,2)", r"\text{Center }(1,2)", r"\text{vertex}\left(1,2\right)"],
        "5": [
            r"\mathrm{Var}(X)=5", r"\mathrm{E}[X]=5", r"\text{Area}(ABC)=5", r"5\text{ m}(\text{downstream})",
            r"\operatorname{gcd}(10,15)=5", r"\|v\|=5", r"5\operatorname{kg}\,\operatorname{m}",
        ],
        r"\gcd(a,b)": [r"\operatorname{gcd}(a,b)"], r"\Gamma(\frac14)": [r"\Gamma(1/4)"], "3,4": [r"(3)\text{or}(4)"],
        r"\|v\|": [r"\left\|v\right\|"],
    },
    "long numbers": {
        "1267650600228229401496703205376": ["1267650600228229401496703205376.0"], "1" + "0" * 60: ["10^{60}"],
        "1267650600228229401496703205376.0": ["1267650600228229401496703205376"],
    },
    "boxes without braces": {
        "5": [
            r"First $\boxed{4}$. No: so it is $\boxed 5$.", r"First $\boxed 4$. No: so it is $\boxed{5}$.",
            r"It is $\boxed5$.",
        ],
        "1234": [r"$\boxed 1,234$"], "-1.5": [r"$\boxed -1.5$."], "B": [r"The answer is $\boxed B$."],
        "3,5": [r"$\boxed{3}$ and $\boxed 5$"], "3/4": [r"The answer is $\boxed 3/4$"],
        "5x": [r"The answer is $\boxed 5x$"],
    },
    "words that keep the number": {
        "5": [
            r"\text{a total of }5", r"\text{the value of }5", r"\text{a length of }5", r"\text{given by }5",
            r"\text{exactly }5", r"\text{equal to }5", r"\text{which gives }5", r"\text{a total of}: 5",
            r"5\text{ different ways}", r"5\text{ distinct roots}", r"5\text{ cups of sugar}", r"5\text{ divisors}",
            r"5\text{ nonzero terms}", r"5\text{ sets of twins}", r"\text{absolute value}: 5",
            r"\text{It is equal to}: 5",
        ],
        "-5": [r"\text{negative }5", r"\text{minus } 5", "negative 5"],
    },
    "complex numbers": {
        r"-32 + 32i \sqrt{3}": [r"-32+32\sqrt{3}i"], r"-\frac34i": [r"-\frac{3i}{4}", "-0.75i"],
        r"\frac{2}{25} - \frac{14}{25}i": [r"\frac{2-14i}{25}", r"\frac{2}{25}-\frac{14i}{25}"],
    },
    "braces around all of it": {
        r"50\%": [r"\mathbf{50\%}", r"{50\%}"], r"27^\circ": [r"\boldsymbol{27^\circ}"],
        "(3,5)": [r"\bm{(3,5)}", r"\color{red}{(3,5)}", r"{\bf (3,5)}"],
        r"\frac{\sqrt{2}}{3}": [r"\mathbf{\frac{\sqrt{2}}{3}}"],
    },
    "left of an equals sign": {
        "5": ["AB=5", "a+b=5", "x^2+y^2=5", r"|x|=5", "x^*=5", "x_1+x_2=5", "S_{10}=5"],
        "y=2x+1": ["y-3=2(x-1)", "2y=4x+2"], r"60\%": [r"100\%-40\%=60\%"], r"\{2\}": [r"\{1,2\}\cap\{2,3\}=\{2\}"],
    },
    "brackets after words and functions": {
        "(3,4)": [r"\text{Answer: }(3,4)"], "10": [r"10\text{ km/h}\ (\text{downstream})"],
        r"\sin^2\frac{\pi}{8}": [r"\sin^2\left(\frac{\pi}{8}\right)"],
        r"\log_2\frac32": [r"\log_2\left(\frac32\right)"],
    },
    "sets side by side": {
        r"\{1,2\}\cup(3,4)": [r"\{1\}\cup\{2\}\cup(3,4)"], "(2,1),(4,3)": [r"\{(2,1),(4,3)\}"],
    },
    "plain": {
        "27": ["27.0", "x = 27"], "1234": ["1,234"], r"\frac{1}{2}": ["0.5"], r"\frac43": [r"\dfrac{4}{3}"],
        "4.4e7": [r"4.4 \times 10^{7}"], r"1 \times 10^{-5}": ["1e-5"], r"7\text{ hours}.": ["7"], "30": [r"30^\circ"],
        "1,-2": ["-2, 1"], r"3 \pm 2\sqrt{2}": [r"3-2\sqrt{2}, 3+2\sqrt{2}"], r"\text{(C)}": ["C"],
        r"\left( 3, \frac{\pi}{2} \right)": [r"(3, \pi/2)"], r"\frac{1}{m} t": [r"\frac{t}{m}"],
        "(a+5)(b+2)": ["ab + 2a + 5b + 10"], r"29,\!322": ["29322"], r"\infty": [r"\infty"],
        "204": [r"\mathbf{204}"], "6, 8": [r"6 \quad 8"],
        r"\begin{pmatrix} -7 \\ 16 \end{pmatrix}": [r"\begin{bmatrix} -7 \\ 16 \end{bmatrix}"],
    },
    "several boxes": {
        "(2,2),(6,2)": [r"\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}"],
        "3,8": [r"\(\boxed{3}\) and \(\boxed{8}\)", r"\boxed{3} if $n$ is even and \boxed{8} if $n$ is odd"],
        "3,8,11": [r"$\boxed{3}$, $\boxed{8}$, and $\boxed{11}$"], r"\boxed{3} \text{ and } \boxed{8}": ["8, 3"],
        "y_{1}=x^2+1, y_{2}=3x": [r"\(y_1 = \boxed{x^2+1}\) and \(y_2 = \boxed{3x}\)"],
        "(3,4)": ["\\boxed{(3,4)}\n\n\\[\\boxed{(3,4)}\\]"],
    },
    "assignments": {
        r"x_{1}=\frac{5}{6},\quad x_{2}=-2": [r"-2, \frac{5}{6}"], "x_1=5, x_2=-2": ["x_1=5, x_2=-2"],
        "k = 45, n = 2": ["45, 2", "n=2, k=45"], "(k, n) = (45, 2)": ["(45, 2)", "n=2, k=45"],
        "45, 2": ["k = 45, n = 2"], "x = 4, x = 9": ["9, 4"], "4, 9": [r"x = 4 \text{ or } x = 9"], "(4,4)": ["4,4"],
        "m=2,n=2": ["2,2"],
    },
    "percent": {
        r"28\%": ["28 percent", r"28\text{ pct}", "28"], "50 percent": ["50"], "50%": ["0.5", r"\frac{1}{2}"],
        "62.5%": ["62.5", "0.625"],
        "0.5": [r"50\%"],
    },
    "commas": {
        "1,22": ["22, 1"], "1.22": ["1,22"], "31250": [r"31\,250", r"31,\!250", "31 250", r"31\text{,}250"],
        "(3, 4)": ["(x, y) = (3, 4)"],
    },
    "rounding": {"928": [r"9.28 \times 10^{2}"], r"1.1 \times 10^{2}": ["110"], "-3": ["-2.9999999"]},
    "inequalities": {
        r"x<1 \text{ or } x>2": [r"(-\infty,1)\cup(2,\infty)"],
        "x<1 or x>2": [
            r"(-\infty,1)\cup(2,\infty)", r"x \in (-\infty,1)\cup(2,\infty)", r"x>2 \text{ or } x<1",
            r"1 > x \text{ or } 2 < x",
        ],
        r"x<1 \lor x>2": [r"(-\infty,1)\cup(2,\infty)"],
        r"x \le 1 \text{ or } x \geq 2": [r"(-\infty,1]\cup[2,\infty)"],
        r"x \leqslant 1 \text{ or } x \geqslant 2": [r"(-\infty,1]\cup[2,\infty)"],
        r"1<x<2 \text{ or } x>3": [r"(1,2)\cup(3,\infty)"], r"x>1 \text{ and } x<2": ["(1,2)", "1<x<2"],
        r"(-\infty,1)\cup(2,\infty)": [r"x<1 \text{ or } x>2"], r"(-\infty,-5)": ["k < -5"],
        r"[\frac{1}{2}, 8]": [r"0.5 \leq x \leq 8"], "(3,4]": [r"3 < \lambda \leq 4"],
        r"x \ge 2": ["x \u2267 2"], r"x \ne 3": [r"(-\infty,3)\cup(3,\infty)"],
        r"x < -1 \text{ or } x \ge 4": [r"(-\infty, -1) \cup [4, +\infty)"],
        r"\{x \mid x<1 \text{ or } x>2\}": [r"(-\infty,1)\cup(2,\infty)"], r"\{x \mid -2<x<3\}": ["-2 < x < 3"],
        r"a \leqslant -2 \text{ or } a = 1": [r"(-\infty, -2] \cup \{1\}"],
        r"1 < x \le 2": ["(1, 2]", r"x \in (1, 2]", r"2 \geq x > 1"], r"x \ge 3": [r"[3, \infty)", r"3 \le x"],
        r"x > 3": [r"x > 3, x \in \mathbb{R}"],
    },
    "written out": {
        r"\frac{5}{6}": [r"\frac{10}{12}"], "3.5": [r"3\frac{1}{2}"], "5!": ["120"], "2^{10}": ["1024"],
        r"11\sqrt2": [r"\sqrt{242}"], r"\frac{5\sqrt{42}}{27}": [r"\frac{10\sqrt{10.5}}{27}"],
        r"1 - \frac{1}{e}": [r"\frac{e - 1}{e}"], "1591": [r"37 \cdot 43 = 1591"],
        "2x": [r"\frac{4x}{2}"], "x^2 - 1": ["(x - 1)(x + 1)"], "5050": [r"\sum_{k=1}^{100} k = 5050"],
        r"\sqrt{17}": ["4.123106"],
    },
    "bases": {"101_2": ["101_{2}", "(101)_2"]},
    "units": {
        r"20 \text{ days}": ["20", r"20 \text{ day}"], r"15\mbox{ cm}^2": ["15", "15 cm^2"], "20 dollars": [r"\$20"],
        "12": [r"12\text{ km/h}", r"12\text{ kg/m}^3", r"12\mathrm{m/s}", "12 km/h"], r"12\text{ km/h}": ["12"],
    },
    "equations": {
        "xy=0": ["2xy=0"], "2x+4y-3=0": [r"y=-\frac{1}{2}x+\frac{3}{4}"],
        r"\frac{x^2}{4}+\frac{y^2}{3}=1": [r"\frac{x^2}{16}+\frac{y^2}{12}=\frac{1}{4}"],
    },
    "answer in tags": {
        "4/7": ["<answer>4/7</answer>"], "5": [r"<answer>\boxed{5}</answer>"],
        "3, 8": ["<answer>3 and 8</answer>"], "20 days": ["<answer> 20 days </answer>"], "7": [r"\boxed{7} <answer>8"],
    },
    "Unicode mathematics": {
        "60": ["60\u00b0", r"60\degree"], "x^2": ["x\u00b2"], "x^{12}": ["x\u00b9\u00b2"], "x^{-1}": ["x\u207b\u00b9"],
        r"2\sqrt{13}": ["2\u221a13"], r"\sqrt{x+1}": ["\u221a(x+1)"], r"\frac{7}{2}": ["3\u00bd"],
        r"\infty": ["\u221e"], "5": ["\u200b5", "\u20ac5"], r"\frac{3\pi}{4}": ["3\u03c0/4"], "a_1": ["a\u2081"],
        "6x": ["6\u00b7x"], r"(-\infty, 3]": ["(\u2212\u221e, 3]"], r"(1,2) \cup (3,4)": ["(1,2)\u222a(3,4)"],
        r"\emptyset": ["\u2205"],
    },
    "functions of programs": {
        r"\ln 2": ["ln(2)"], r"\frac{\pi}{2}": ["pi/2"], r"2\pi": ["2*pi", "2pi"],
        r"\arctan 2": ["arctan(2)", "atan(2)"],
        "e^{x}": ["exp(x)"], "x^2+3x": ["x**2+3*x"], r"\sin x": [r"\operatorname{sin} x", r"\mathrm{sin}\,x", "sin(x)"],
        r"\cos^2 x": ["cos(x)**2"], "x^{10}": ["x**10"],
        "(x+1)^{-2}": ["(x+1)**(-2)"], r"\sqrt{2}": ["sqrt(2)"], r"\log_2 3": ["log_2(3)"],
    },
    "arguments without braces": {
        r"2\sqrt{\pi}": [r"2\sqrt\pi", r"2\sqrt\mathrm{\pi}"], r"\sqrt{\frac{1}{2}}": [r"\sqrt\frac12"],
        r"\frac{1}{\pi}": [r"\frac1\pi"], r"\frac{1}{\sqrt{2}}": [r"\frac1\sqrt2"], r"2\sqrt[3]{2}": [r"2\sqrt[3]2"],
        r"x^{1/3}y": [r"x^\frac13 y"], r"e^{\sqrt{2}}": [r"e^\sqrt2"], r"\sqrt{\theta}": [r"\sqrt\theta"],
        r"\sqrt{\sqrt{3}}": [r"\sqrt\sqrt3"], r"\frac{\sqrt{2}}{2}": [r"\frac12\sqrt2"],
    },
    "repeating decimals": {
        r"\frac{1}{3}": [r"0.\overline{3}", r"0.\dot{3}", r"0.\bar{3}", r"0.\bar 3"],
        r"0.1\overline{6}": [r"\frac{1}{6}"],
        r"\frac{41}{333}": [r"0.\dot{1}2\dot{3}"], r"-\frac{4}{3}": [r"-1.\overline{3}"],
        r"\frac{1}{7}": [r"0.\overline{142857}"],
    },
    "points without decimals": {r"5\pi": [r"5.\pi"], "5": [r"5.\text{ cm}", r"\{5.\}"], "1.2": [r"1.\,2"]},
    "Chinese": {
        "20000": ["2\\text{\u4e07}", "2\u4e07"], "120000": ["12\u4e07\u5143"], "12": ["12\u5143"],
        "5": ["5\u4e2a"], "300000000": ["3\u4ebf"],
    },
    "standard LaTeX": {
        r"\emptyset": [r"\varnothing"], "3, -5": [r"a = 3 \lor a = -5"],
        r"1.2 \times 10^{-5}": [r"1.2 \times 10^-5", "1.2*10**(-5)"],
        r"\gamma^2-1": [r"(\gamma-1)(\gamma+1)"], "E_1+E_2": ["E_2+E_1"], r"\frac{\pi}{2}": [r"\frac\pi 2"],
        r"\frac{R}{r}": [r"R/r"],
    },
    "nouns": {
        "5 people": ["5", "5 people"], "5": ["5 USD", "5 people"], "5 m/s": [r"5\,\text{m/s}"], "60 mph": ["60"],
        r"9.8\text{ m/s}^2": ["9.8 m/s^2"],
        r"\text{east}": ["east", "East"], r"2\text{ hours }30\text{ minutes}": [r"2\text{ hours }30\text{ minutes}"],
        r"(\text{H})": ["H"], "IX": [r"\text{IX}"], "5 MHz": [r"5\text{ MHz}", "5"], "60": ["60 MPH"],
    },
    "words": {
        "5000000": [r"5\text{ million}", "5 million", r"\$5 \text{ million}"], r"5\text{ million}": ["5,000,000"],
        "300000": [r"3\text{ hundred thousand}"], "2000000000": ["2 billion"], "2e12": ["2 trillion"],
        r"3\pi": [r"3\text{ pi}", "3 pi"],
        "1, 2, 3": [r"1\text{, }2\text{, and }3", "1, 2, and 3"], "2": [r"2\text{ times}", r"2\text{ apples}"],
    },
    "characters": {"12": ["\uff11\uff12"], "-3": ["\u20133", "\u22123"], "(1,2)": ["\uff081\uff0c2\uff09"]},
    "layout commands": {
        "5": [
            r"\displaystyle 5", r"\color{red}{5}", r"\textcolor{blue}{5}", r"\mathsf{5}", r"\underline{5}", r"{\bf 5}",
            r"\hspace{1cm}5", r"5\phantom{0}", r"\large 5", r"\Huge 5", r"5 \tag{1}",
            r"\left.5\right.", r"\left. 5 \right.", r"\mathstrut 5", r"\hfill 5", r"\normalsize 5", r"\kern1em 5",
            r"\rm 5", r"\ensuremath{5}", r"\pmb{5}", r"\hspace*{1cm}5", r"\smash{5}", r"\framebox{5}",
            r"\begin{aligned} x &= 5 \end{aligned}", r"\begin{align*}x=5\end{align*}", r"\Rightarrow 5",
        ],
        r"\frac{1}{6}": [r"\nicefrac{1}{6}", r"\text{1/6}"], r"\binom{10}{3}": [r"{10 \choose 3}"],
        r"\frac{1}{2}": [r"\textstyle\frac{1}{2}", r"\scriptstyle \frac12", r"\cfrac{1}{2}"],
        "(1,2)": [r"\bigl(1,2\bigr)", r"\Bigg(1,2\Bigg)"], "[1,2]": [r"\big[1,2\big]"],
        r"\{1,2\}": [r"\Bigl\{1,2\Bigr\}"], r"\sum_{k=1}^n k^2": [r"\sum\limits_{k=1}^{n} k^2"],
    },
    "nothing left to work out": {
        "2, -2": [r"\pm 2"], "-3, 3": [r"x = \pm 3"], r"5\sqrt[3]{4}": [r"5 \cdot 2^{2/3}"],
        r"\binom{n}{2}": [r"\dbinom{n}{2}", r"\tbinom{n}{2}"],
        r"\frac{d !}{2 k(d-k) !}": [r"\dfrac{\dbinom{d}{k} (k - 1)!}{2}"], r"\frac{n!}{k!(n-k)!}": [r"\binom{n}{k}"],
        r"\sqrt{3}, -\sqrt{3}": [r"\pm\sqrt{3}"], r"3\sqrt[3]{2}": [r"3 \times 2^{1/3}"], r"6\pi": [r"6 \cdot \pi"],
        r"12\sqrt{2}": [r"12 \times \sqrt{2}"], r"\frac{\sqrt{3}}{2}": [r"\frac{1}{2} \cdot \sqrt{3}"],
        r"2\pi": [r"2 * \pi"], "0.00032": [r"3.2 \cdot 10^{-4}"], r"\frac{1}{\sqrt{2}}": ["2^{-1/2}"],
        r"1+\sqrt{2}, 1-\sqrt{2}": [r"1 \pm \sqrt{2}"], r"4\sqrt[3]{2}": ["2^{7/3}"],
        r"\frac{5}{6}": [r"+\frac{5}{6}"], r"-\frac{5}{6}": [r"\frac{-5}{6}", r"-\left(\frac{5}{6}\right)"],
        "3": ["(3)", "{3}"], "2^{n+1}": [r"2 \cdot 2^n"], r"\frac{\pi}{4}": [r"0.25\pi"],
    },
    "a left side in words": {
        "5": [
            r"\text{Area} = 5", r"|\overline{AB}| = 5", r"\overline{AB} = 5", r"\text{Area of } ABC = 5", "Area = 5",
            r"\text{Area } = 2 + 3 = 5", r"\text{Area} \approx 5", r"\text{Answer: } 5",
            r"\det A = 5", r"\gcd(10, 15) = 5", r"\binom{5}{1} = 5",
        ],
        r"\frac{1}{6}": [r"P(A \cap B) = \frac16"], "10": [r"\text{Number of ways} = 10"],
        "60": [r"\angle ABC = 60^\circ"], r"60^\circ": [r"m\angle A = 60^\circ"], "6": [r"S_{\triangle ABC} = 6"],
        "3": [r"\mathbb{E}[X] = 3"], r"\frac12": [r"\Pr(A \mid B) = \frac{1}{2}"],
        "12": [r"\text{Total number of pairs and triples} = 12"], "3,5": [r"\text{Alice} = 3, \text{Bob} = 5"],
        "7": [r"\operatorname{rank}(A) = 7"], "0.3": ["P(X = 2) = 0.3"],
        r"\frac{dy}{dx} = 2x": ["y' = 2x", "2x", r"\frac{dy}{dx} = x + x"],
        r"\text{Area} = 5": ["5", r"\text{Area} = 5.0"], r"2\pi": [r"\text{period } T = 2\pi"],
    },
    "ratios and times": {
        "1:2:3": ["1:2:3", "1 : 2 : 3", "2:4:6", r"1\colon 2\colon 3"], "1:2": [r"\frac{1}{2}", "1 : 2"],
        "2:3": ["AB:BC = 2:3"],
        r"\sqrt{2}:1": [r"\sqrt2 : 1"], "3:30 PM": [r"3:30\text{ PM}", r"3:30 \text{ p.m.}", "3:30 pm"],
        "3:30": ["3:30", "3{:}30"], "a:b:c": ["a : b : c"], r"1:\sqrt{3}:2": [r"1 : \sqrt3 : 2"],
    },
    "repeated values": {
        r"\{2,2,3\}": [r"\{3,2,2\}"],
        "1,1,2": ["1, 1, 2", "2, 1, 1"], "-2,-2": [r"a = -2, \ b = -2"], "16,3,1,1": ["w=16, d=3, a=1, b=1"],
        r"\{1,2\}": [r"\{1,1,2\}"], "2, 2": ["2, 2.0"], "(1,1),(1,1),(2,3)": ["(1,1),(2,3),(1,1)"],
    },
    "units in several commands": {
        "5": [
            r"5\,\mathrm{m}/\mathrm{s}", r"5\ \mathrm{kg}\cdot\mathrm{m}/\mathrm{s}^2",
            r"5 \, \text{m} \, \text{s}^{-2}", r"5\,\frac{\text{m}}{\text{s}}", r"5\ \text{m}\cdot\text{s}^{-1}",
            r"5~\mathrm{kg}\,\mathrm{m}^{-3}", r"5\,\mathrm{\mu m}", r"5 \mathrm{\Omega}", r"5\text{ N}\cdot\text{m}",
            r"5(\mathrm{cm})", r"5\left(\text{cm}^2\right)", r"5(\mathrm{s}^{-1})", "5 hrs", "5 lbs",
        ],
        r"5\text{ m/s}": [r"5\,\mathrm{m}/\mathrm{s}"],
        "20": [r"20^\circ C", r"20^\circ\mathrm{C}", r"20^{\circ}\text{C}"], r"20^\circ C": [r"20^{\circ}\text{C}"],
        r"5\,\mathrm{m}/\mathrm{s}": ["5"], "9.8": [r"9.8\,\mathrm{m}\,\mathrm{s}^{-2}"],
    },
    "choices with their text": {
        "B": [
            r"\textbf{(B) }12", "B: 12", "(B) 12", r"\text{(B)}\ 12", r"\textbf{(B)}\ \frac{1}{2}", "B. 12", "B) 12",
            r"\mathrm{(B)}\ 12", "Option B", r"\text{choice (B)}",
            "B)", "Option B: 12", r"\textbf{B}. 12", r"\mathbf{(B)}\ 12", "**B.** 12", r"(\text{B})\ 12",
            r"{\bf (B)} 12", r"$B$: 12", r"\text{Answer: B}", r"\text{Final Answer: (B)}",
        ],
        "(B)": [r"\textbf{(B) }12"], r"\text{(B)}": [r"\textbf{(B) }12"], r"\textbf{(B)}": ["B", r"\text{B}"],
        r"\textbf{(B) }12": ["B", "12", "(B) 12"], "C": [r"\text{C: } 3\sqrt{2}"],
        "12": [r"\textbf{(B) }12", r"\text{(B) 12}"], r"\frac{1}{2}": [r"\textbf{(B) }\frac{1}{2}"],
        "D": [r"\text{(D) none of these}", r"\textbf{(D)}\ \text{only I and II}"], "E": [r"\textbf{(E)}~\frac{3}{4}"],
    },
    "what math-verify cannot read": {
        r"f(x)=\begin{cases}x & x>0\\0 & x\le 0\end{cases}": [r"\begin{cases} x & x>0\\ 0 & x\le 0\end{cases}"],
        r"\langle 1,2 \rangle": [r"\langle 1, 2\rangle", r"\vec{v} = \langle 1,2\rangle"], r"A \to B": [r"A\to B"],
        r"\overrightarrow{AB} \parallel \overrightarrow{CD}": [r"\overrightarrow{AB}\parallel\overrightarrow{CD}"],
        r"\{x \mid x^2 > 2\}": [r"\{ x\mid x^2>2 \}"], r"p \implies q": [r"p\implies q"],
        r"\langle 1,-2,3 \rangle": [r"\left\langle 1, -2, 3 \right\rangle"],
        r"\mathbb{Z}/2\mathbb{Z}": [r"\mathbb{Z} / 2\mathbb{Z}"],
    },
    "a formula and its domain": {
        "a_n=2^n": [r"a_n=2^n \ (n \ge 1)", r"a_n=2^n, n \ge 1", r"a_n = 2^n \text{ for } n \ge 1"],
        "a_n=2^n, n > 0": [r"a_n=2^n, n \ge 1"], "f(x)=2x, x>1": [r"f(x)=2x \text{ for } x > 1"],
        r"f(x)=\frac1x, x \ne 0": [r"f(x)=\frac1x", r"f(x) = \frac{1}{x} \quad (x \neq 0)"],
        r"y=\sqrt{x}\ (x \ge 0)": [r"y=\sqrt{x}", r"y = \sqrt{x}, x \ge 0"],
        "f(x)=kx": [r"f(x)=kx \text{ for some constant } k"], r"f^{-1}(x)=\sqrt{x}, x \ge 0": [r"\sqrt{x}"],
        r"x=\frac{\pi}{6}+\pi k, k\in\mathbb{Z}": [r"x=\frac{\pi}{6}+k\pi, k\in\mathbb{Z}"],
        r"x = 2 n, n \in \mathbb{Z}": [r"x=2n, n\in\mathbb{Z}", "x=2n"],
        r"f(x) = c x, c \in \mathbb{R}": ["f(x)=cx"], r"x>2, x\in\mathbb{R}": [r"(2,\infty)", "x>2"],
        r"2k\pi, k\in\mathbb{Z}": [r"2k\pi\text{ for }k\in\mathbb{Z}", r"2k\pi\; k\in\mathbb{Z}"],
        r"f(x)=\frac1x": [r"f(x)=\frac1x \text{ for all } x\neq0"],
        "f(x)=2x": [
            r"f(x)=2x \text{ for all } x \in \mathbb{R}", r"f(x)=2x, x \in \mathbb{R}",
            r"f(x)=2x \quad \forall x \in \mathbb{R}", r"f(x) = 2x \text{ for every real number } x",
        ],
        "f(x)=1": [r"f(x) = 1 \text{ for all } x \in \mathbb{Q}_{>0}"],
        r"2k\pi": [r"2k\pi, k \in \mathbb{Z}", r"2k\pi \ (k \in \mathbb{Z})"],
        r"x = 2k\pi": [r"x = 2k\pi, \quad k \in \mathbb{Z}"], "f(n)=n+1": [r"f(n) = n+1 \text{ for all } n \ge 0"],
        r"f(x)=2x \text{ for all } x \in \mathbb{R}": ["f(x)=2x"],
        "f(x)=cx": [r"f(x) = cx \text{ where } c \text{ is a constant}"],
        r"f(x)=cx \text{ for any real } c": ["f(x)=cx"], "n^2": [r"n^2 \text{ for all positive integers } n"],
        r"2k\pi, k \in \mathbb{Z}": [r"2k\pi, k\in \mathbb{Z}"],
    },
    "upright letters and commands": {
        "e^2": [r"\mathrm{e}^2", r"\text{e}^2"], r"2 - \frac{1}{e}": [r"2 - \frac{1}{\mathrm{e}}", "2-1/e"],
        r"3\mathrm{i}": ["3i"], "2+i": [r"2+\mathrm{i}"], r"1 - \frac{1}{\mathrm{e}}": [r"\frac{e-1}{e}"],
        "25": [r"\text{25}"],
        r"2\pi": [r"2\mathrm{\pi}"], r"2\mathrm{\pi}": [r"2\pi"], "2x": [r"2\mathrm{x}"], r"2\mathrm{x}": ["2x"],
        "x+1": [r"x\text{+}1"],
        r"2\sqrt{3}": [r"2\mathrm{\sqrt{3}}"], r"3\alpha": [r"3\mathrm{\alpha}"], r"2\text{k}": ["2k"],
        r"2\textit{x}": ["2x"], r"5\mathrm{i}": ["5i"], r"3\mathrm{x}+\mathrm{y}": ["3x+y"],
        r"2\ln 2": [r"2\mathrm{ln}2"], r"4\pi": [r"4\text{$\pi$}"], r"2k\pi": [r"2\mathrm{k}\pi"],
    },
    "mixed numbers": {
        r"\frac{5}{4}": ["1 1/4", r"1\ 1/4"], "1 1/4": [r"\frac54"], r"3\frac{1}{2}": ["3 1/2"],
        r"-\frac{5}{4}": ["-1 1/4"], "2.75": ["2 3/4"], r"\frac{7}{2}": [r"3 1/2 \text{ hours}"], "3 1/2": ["3.5"],
    },
    "or in any spelling": {
        "3, 4": [
            "3\\text{\u6216}4", "3\u62164", "3\\text{ \u548c }4", "3\u30014", r"3\mathrm{\ or\ }4", "3 OR 4",
            r"3\textbf{ or }4", r"3 \mbox{ or } 4", r"3 \text{ Or } 4", "3 \u6216\u8005 4", "3\u4e0e4",
            "x=3 \\text{\u6216} x=4", r"x = 3 \quad\text{or}\quad x = 4", r"3 \text{ oder } 4",
            r"3 \operatorname{or} 4", "3 \u2228 4", r"3 \;\text{or}\; 4", "either 3 or 4", "3 oder 4", "3 ou 4",
            "3 et 4", "3 \u0438\u043b\u0438 4", "3\u307e\u305f\u306f4", "3 \ub610\ub294 4", "3 lub 4",
            r"3 \text{ veya } 4",
        ],
        "3, -5": [r"a = 3 \vee a = -5"], "3\u62164": ["3, 4"],
    },
    "structure": {
        r"\frac{1}{3}": ["0.(3)"], r"\frac{1}{6}": ["0.1(6)"], r"2^{T}": ["2^T"], "3n2^{n-1}": [r"3n \cdot 2^{n-1}"],
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": [r"\begin{pmatrix} 1 & 2 \end{pmatrix}^T"], "-5": [r"\text{-}5"],
        "2h30m": [r"2\text{h }30\text{m}"], "x=6, y=5": [r"x = 6 \\ y = 5"], "y' = 2x": [r"y^{\prime} = 2x"],
        "3-1": ["3-1", "3 - 1"], "2020-05-06": ["2020-05-06"], "1,2,3": ["(x, y, z) = (1, 2, 3)", "(1,2,3)"],
    },
    "near a reading that is stricter now": {
        "5": [
            r"We get $\boxed{6}$. Wait, that is wrong, so it is $\boxed{5}$.",
            r"Part (a): $\boxed{6}$. Part (b), the last one: $\boxed{5}$.",
        ],
        "1,1,2": [r"$\boxed{1}$, $\boxed{1}$ and $\boxed{2}$"], "2:3": ["20:30", "14:21"],
        "1000000": [r"1 \, 000 \, 000"],
        r"5\text{ m/s}": [r"5\text{ m s}^{-1}", r"5\,\mathrm{m}\cdot\mathrm{s}^{-1}"], "1000": ["1'000"],
        r"9.8\text{ m/s}^2": [r"9.8\,\mathrm{m\,s^{-2}}"], r"\binom{10}{3}": [r"\frac{10!}{3!7!}", "120"],
        r"30^\circ 15'": [r"30^\circ15'"], r"n(A\cup B)=7": [r"|A \cup B|=7", "7"], "x+2": [r"\mathrm{x}+2"],
        r"2\pi r": [r"2\pi\mathrm{r}"], r"\{2,4,6\ldots\}": [r"\{2,4,6,\ldots\}"],
        r"3\text{ m}, 4\text{ m}": ["3, 4", r"3\text{ m}, 4\text{ m}"],
    },
}
UNEQUAL: Answers = {
    "near a function and where it is defined": {
        "f(x)=x": [r"f(x)=x, x \ge 0; -x, x \le 0", r"f(x) = x, x \ge 0, 7", r"f(x) = x \ (x \ge 0) \text{ or } 2x"],
        r"\frac{dy}{dx}=2x": ["y=2x"], "y=2x": [r"\frac{dy}{dx}=2x"], "a=3": ["a_2=3"],
        "x_1=3, x_2=-5, x_3=3": ["x=3, x=-5, x=-5"], r"\text{HT}": [r"\text{TH}"], r"\text{NO}": [r"\text{ON}"],
        "2^{10}": ["1000+24"], "10!": [r"7! \cdot 720"], "1.0": [r"1.0\%"],
    },
    "lists and values of several letters": {
        "x=y=z=0": ["x=0", "0, 0"], "a=b=2, c=3": ["b=c=2, a=3", "2, 3"], "x_1=3, x_2=-5": ["y=3, y=-5", "x=3"],
        "a_3=2, a_{37}=19": ["a_3=2, a_{38}=19"],
        r"x \ne 1, 2": [r"x \ne 1, 3", r"x \ne 1"], "-2<x<2": ["|x|<3", "|x-1|<2"], "(1,2)": ["|x|<2"],
    },
    "a function and where it is defined": {
        "y=x, x>0": ["y=x, x<0", "y=2x, x>0", r"y=x\ (x \ge 0)"], r"f(x)=2x, x \ge 1": ["f(x)=2x, x>1"],
        "a_n=2^n": [r"a_n=2^n, n \ge 5", r"a_n=2^n, n=1"],
        "f(x)=2x": [r"f(x)=2x \text{ for some } x"], r"f^{-1}(x)=\sqrt{x}": [r"f(x)=\sqrt{x}, x \ge 0"],
    },
    "an unknown with a number": {
        "5": [
            r"\frac{x}{2}=5", "x/2=5", r"x \cdot 2=5", r"\frac12 x=5", "0.5x=5", r"\frac{x+1}{2}=5", r"\text{Area}+1=5",
            r"2\,\text{Area}=5", r"\frac{\text{Area}}{2}=5", r"\text{Area}/2=5", r"-\text{Area}=5",
        ],
        "2^n": ["a_n+1=2^n", r"\frac{a_n}{2}=2^n"],
        "2x": ["f(x)+1=2x"],
    },
    "upright letters and words": {
        r"2\mathrm{AB}": ["2"], "2": [r"2\mathrm{AB}"], "3": [r"2\mathrm{AB}+1"], "0.5": [r"0.5\%"],
        "5": [r"5\text{ bn}", r"5\text{th power}"],
        r"\frac{dy}{dx}": ["0"], r"-\frac{dy}{dx}": [r"\frac{dy}{dx}"],
    },
    "signs within brackets": {
        r"(\pm1,2)": ["(-1,1,2)", "(1,-1,2)", "(1,2)"], r"(2,\pm1)": ["(2,-1,1)"], r"(\pm1,\mp2)": [r"(\pm1,\pm2)"],
        r"\frac{3\pm\sqrt5}{2}": [r"\frac{3+\sqrt5}{2}", r"\frac{5\pm\sqrt3}{2}"],
    },
    "what stands after a layout command": {
        "2": [r"\color{red}x=\frac{1}{2}", r"\hspace{1em}x = \frac{3}{2}", r"\tag{a}x=\frac{3}{2}"],
        "5": [r"\color{red}x^{2}+5"], "b": [r"\color{red}a\color{black}+b"], "7": [r"7\hspace{1cm}k\in\mathbb{Z}"],
        r"x^{\underline{3}}": ["x^3"], r"5^{\underline{2}}": ["25"], "I_2": ["I_3", "I"],
    },
    "names, sets and lists": {
        "5": [
            r"\text{at least: }5", r"\text{the answer is not }5", "The answer is up to 5.", "The answer cannot be 5.",
            "The answer isn\u2019t 5.", "The answer isn't $5$.", "The answer can't be 5.",
            "The answer is less than or equal to 5.", "The answer is two thirds of 5.",
        ],
        "3": ["The answer is x=3 and y=7.", "The answer is x = 2 or x = 3.", "The answer is 3 base 7."],
        "7": ["The answer is x = 3, y = 7."], "101": ["The answer is 101_2."],
    },
    "upright functions without brackets": {
        "2": [
            r"2\mathrm{xy}", r"2\mathrm{ab}", r"2\mathrm{x^2}", r"2\mathrm{x}^2", r"2\text{^2}", r"2\text{+x}",
            r"2^{\mathrm{T}}",
        ]
        + [
            rf"\mathrm{{{name}}}\,2"
            for name in (
                "tg", "ctg", "cotg", "cosec", "arctg", "arccot", "arcsec", "arcosh", "sech", "cis", "erf", "Log", "Ln",
                "sgn", "abs", "floor", "ceil", "cbrt",
            )
        ],
    },
    "comparisons without a box": {
        "5": [
            "The answer is x \u2265 5.", "The answer is x \u2260 5.", "The answer is \u2264 5.", "The answer is x != 5",
            "The answer is 5pi", "The answer is 5*pi.",
        ],
        "2": ["The answer is 2sqrt(5)", "The answer is 2 * sqrt(5).", r"2\text{ extraneous}", r"2\text{ (extraneous)}"],
        "6": ["The answer is {5, 6}."],
        "1<x<2": [rf"x<2\text{{ {word} }}x>1" for word in ("ou", "oder", "lub", "\u307e\u305f\u306f", "\ub610\ub294")],
        r"n\ge5": [r"n\ge5\text{ and }n\text{ odd}", r"n\ge5,\ n\text{ prime}"], "x>2": [r"\text{integers }x>2"],
        r"n\ge5\text{ and }n\text{ odd}": [r"n\ge5"],
    },
    "lines of an environment": {
        "5": [
            r"\begin{aligned}x&=5\\y&=6\end{aligned}", r"\begin{cases}5\\6\end{cases}",
            r"\begin{aligned}x&=5\\&=6\end{aligned}",
        ],
        "x=1, y=2": [r"\begin{cases}x=2\\y=1\end{cases}"], "1,2": [r"\begin{array}{c}1\\2\end{array}"],
        "x^2": [r"\begin{cases}x^2 & x>0\\0 & x\le 0\end{cases}"],
    },
    "unions": {
        r"(-\infty,1)\cup(2,\infty)": [
            r"(-\infty,1)\cap(2,\infty)", r"(-\infty,1)\text{ or }[2,\infty)", r"(-\infty,1)",
        ],
        "1<x<3": [r"x>1 \vee x<3"], r"p\wedge q": [r"p \vee q", "p, q"],
    },
    "number and unit in a text": {
        "5": [r"\text{5 or 6}", r"\text{5 hours 30 min}", r"\text{5 million}", r"\text{5 more}", r"\text{5 dozen}"],
        "5 cm": [r"\text{5 km}", r"\text{5 cm^2}"], "3:2": [r"\text{boys}:\text{girls}=2:3"],
    },
    "old LaTeX": {
        "2": [r"2{\rm e}", r"2\mathrm e"], r"2k\pi, k\in\mathbb{Z}": [r"2k\pi, k\in\mathbf{N}", r"2k\pi, k\in N"],
    },
    "values of other names": {
        "f(1)=2, f(3)=4": ["f(1)=4, f(3)=2"], "A=(1,2), B=(3,4)": ["A=(3,4), B=(1,2)"],
        r"\min=1, \max=5": [r"\min=5, \max=1"],
        r"3\text{ red}, 4\text{ blue}": [r"4\text{ red}, 3\text{ blue}", r"3\text{ blue and }4\text{ red}"],
        r"\text{Alice: }3, \text{Bob: }4": [r"\text{Alice: }4, \text{Bob: }3", r"\text{Bob}=3, \text{Alice}=4"],
        r"x=\pm 1, y=\pm 2": [r"x=\pm 2, y=\pm 1"], "x=y=z=0": ["x=0", "x=0, y=0"], "x=2, y=3": ["x=2, 3"],
        r"\text{Alice}, \text{Bob}": [r"\text{Bob}, \text{Alice}"],
        "f(3)=5": ["f(5)=3", r"f\left(4\right)=5"], "f(-1)=2": ["f(1)=2"], "f_1(3)=5": ["f_1(4)=5"],
        "f(1)=2, f(3)=5": ["5, 2", "a=5, b=2"], "A_1=2, a_2=3": ["a_1=2, A_2=3"], "x=1, y=3": ["m=3, n=1"],
        r"3\text{ apples}, 4\text{ pears}": [r"\text{apples}=4, \text{pears}=3", "4, 3"],
    },
    "several solutions in other pairs": {
        r"x=1, y=2 \text{ or } x=3, y=4": [
            r"x=1,y=4 \text{ or } x=3,y=2", "x=1, y=4; x=3, y=2", "(1,4),(3,2)", "(x,y)=(1,4),(3,2)",
            "x=1,x=3, y=2,y=4", "x=1,3, y=2,4", "x=1, y=2", "[1,2],[3,4]",
            r"\begin{cases}x=1\\y=4\end{cases} \text{ or } \begin{cases}x=3\\y=2\end{cases}",
        ],
        "(1,4),(3,2)": [r"x=1,y=2 \text{ or } x=3,y=4"],
        r"x=1,y=2 \text{ or } x=2,y=1": [r"x=1,y=1 \text{ or } x=2,y=2"],
        r"a=1, b=2, c=3 \text{ or } a=3, b=2, c=1": [r"a=1, b=2, c=1 \text{ or } a=3, b=2, c=3"],
        r"p=7, q=2 \text{ or } p=5, q=3": ["(7,3), (5,2)", "(2,7), (3,5)"],
    },
    "letters and their values": {"(1,2)": ["y=1, x=2", "x=1, x=2"]},
    "units with Greek letters": {
        r"5\,\text{k}\Omega": [r"5\,\Omega", r"5\,\text{M}\Omega"], r"5\,\mu\text{m}": [r"5\,\text{m}"],
        "5": [r"5\Omega+1", r"5\mu", r"5\Omega^2", r"5x\Omega"],
    },
    "near a new reading": {
        "5": [
            r"\text{5 x}", r"\text{5 pi}", r"\text{5 - x}", r"\mathrm{5\,e}", r"{\rm 5 x}", r"\text{5 !}", "(A)*5",
            r"\text{at least}: 5", r"\text{more than}: 5", r"\text{minus}: 5", r"\text{not}: 5",
        ],
        "2": [r"\mathrm{2 + x}", r"\mathrm{2 \pi}", r"\text{2 times x}", r"2^\mathrm T"],
        "12": [r"\text{12 divided by x}", r"\text{12 sqrt x}", r"\text{12 choose k}"], "3": [r"\text{3 is wrong}"],
        "(2,45)": ["(n,k)=(45,2)", "n=45, k=2"], "(3,4)": ["(l,h)=(4,3)"], "(5,3)": ["a=3, B=5"],
        r"\begin{cases}x, x>0\\-x, x<0\end{cases}": [r"\begin{cases}-x, x>0\\x, x<0\end{cases}"],
        "(2,3)": [r"\begin{cases}x+y=2\\x-y=3\end{cases}", "x+y=2, x-y=3"], "(4,5)": ["x^2=4,y=5"],
        r"\{6,12\}": [r"\begin{cases}ab=6\\a+b=12\end{cases}"], r"\begin{cases}2x+3y=6\\x-y=12\end{cases}": ["6,12"],
        "(1,2),(3,4)": [r"(1,2)\cup(3,4)"], r"(1,2)\cup(3,4)": [r"\{(1,2),(3,4)\}"], "x \\in A, y \\in C": [r"x \in A"],
        r"\angle A = \angle B": [r"\angle B"], r"\sin\angle A = \cos\angle B": [r"\cos\angle B"],
        "x": [r"x^{\mathrm T}", r"x^{\rm T}"], "AB": [r"A^\mathrm TB"],
        r"\omega = dx\wedge dy": ["dx, dy", r"\omega = dy\wedge dx"],
        r"2k\pi, k\in\mathbb{Z}": [r"2k\pi, k\in\mathbb{Z}^{+}", r"2k\pi, k\in\mathbb{Z}\setminus\{0\}"],
    },
    "restrictions in other words": {
        r"2k\pi, k\in\mathbb{Z}": [r"2k\pi, k\in\mathbb{Z}, k>0", r"2k\pi, k\in\mathbb{Z}, k\ge 1"],
        "(1,2)": ["x_2=1,x_1=2", "Y=1, X=2", "B=1, A=2"], "25": [r"2\text{5 cm}"], "0.5": [r"0.\text{5 cm}"],
        r"[1,2)\cup(3,4]": ["a=[1,2), b=(3,4]", "D=[1,2), R=(3,4]"], "12": ["(A)_{12}"], "2": ["(B)_2"], "B": ["(B)!"],
        "5": [
            r"\text{square root of}: 5", r"\text{opposite of}: 5", r"\text{wrong}: 5", r"\text{The value is not}: 5",
            r"\text{less than or equal to}: 5", r"\text{unequal to}: 5", r"\text{floor of}: 5", r"\text{5 alpha}",
            r"\text{divisible by}: 5", r"\text{5 modulo}",
        ],
    },
    "families of solutions": {
        r"x=\frac{\pi}{6}+\pi k, k\in\mathbb{Z}": [
            r"\frac{7\pi}{6}", r"x=\frac{\pi}{6}+\pi k, k\in\mathbb{Z}, k\ne0",
            r"x=\frac{\pi}{6}+\pi k\text{ where }k\text{ is odd}",
        ],
        r"x = 2 n, n \in \mathbb{Z}": ["2"], r"f(x) = c x, c \in \mathbb{R}": ["c", "f(x)=c"],
        "f(x)=2x": [r"f(x)=2x\text{ where }x=3"], r"x > 2, x \in \mathbb{Z}": [r"(2,\infty)"],
    },
    "sums and products of roots": {
        r"\frac18": [r"\cos\frac{\pi}{9}\cos\frac{2\pi}{9}\cos\frac{4\pi}{9}"],
        "4": [
            r"\sqrt{7+4\sqrt3}+\sqrt{7-4\sqrt3}", r"\frac{1}{\sin\frac{\pi}{18}}-\frac{\sqrt3}{\cos\frac{\pi}{18}}",
            r"x=\sqrt{7+4\sqrt3}+\sqrt{7-4\sqrt3}", r"\log_2 3\cdot\log_3 16",
        ],
        "1": [r"\sqrt{3+2\sqrt2}-\sqrt2", r"\sin^2 3+\cos^2 3", r"\tan\frac{\pi}{97}\cot\frac{\pi}{97}"],
        "(1,2)": [r"(\sqrt{3+2\sqrt2}-\sqrt2,2)"], r"\{1,4\}": [r"\{1,\sqrt{7+4\sqrt3}+\sqrt{7-4\sqrt3}\}"],
        "x<4": [r"x<\sqrt{7+4\sqrt3}+\sqrt{7-4\sqrt3}"], "0.5": [r"\frac{\sqrt{7+4\sqrt3}+\sqrt{7-4\sqrt3}}{8}"],
        r"10^{40}\sqrt2+\pi": [r"10^{40}\sqrt2+3"],
    },
    "functions in upright letters": {
        "x": [r"\mathrm{erf}(x)", r"\mathrm{sgn}\left(x\right)"], "z": [r"\text{Re}(z)"], "A": [r"\mathrm{tr}(A)"],
        "5": [
            r"\mathrm{Var}(5)", r"\text{floor}(5)", r"\mathrm{E}[5]", r"\text{ceil} (5)", r"\operatorname{E}[5]",
            r"\operatorname{gcd}(15,25)", r"\operatorname{lcm}(1,5)", r"\|\begin{pmatrix}3\\4\end{pmatrix}\|",
            r"\operatorname{tr}\begin{pmatrix}2&0\\0&3\end{pmatrix}",
            r"\operatorname{norm}(\begin{pmatrix}3\\4\end{pmatrix})",
        ],
        "2": [r"\operatorname{rank}\begin{pmatrix}2&0\\0&3\end{pmatrix}"], "24": [r"\Gamma(5)"],
        r"\begin{pmatrix}1&3\\2&4\end{pmatrix}": [r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^T"],
        r"\begin{pmatrix}1&0\\0&1\end{pmatrix}": [r"\operatorname{eye}(2)", r"\operatorname{diag}(1,1)"],
        "5x": [r"5\mathrm{erf}(x)", r"5\operatorname{erf}(x)"], r"\frac x2": [r"\mathrm{erf}(\frac{x}{2})"],
        r"\mathrm{tr}(A)": ["A", r"\mathrm{tr}(B)"],
    },
    "boxes without braces": {
        "4": [r"First $\boxed{4}$. No: so it is $\boxed 5$."], "3": [r"$\boxed 3$ and $\boxed 5$", r"$\boxed 3/4$"],
        "12": [r"$\boxed 12:30$"], "A": [r"$\boxed A and B$"],
        "5": [r"$\boxed 5$. No: so it is $\boxed{"],
    },
    "functions in words": {
        "5": [rf"\operatorname{{{name}}}(5)" for name in ("erf", "sgn", "arsinh", "Im", "lb", "Arg")],
        "z": [r"\operatorname{Im} z"], r"\operatorname{tr}(A)": ["A"], r"\operatorname{tg} 2": ["2"],
    },
    "an unknown": {"5": ["x+1=5", "5-x=5", "-x=5", "2x=5"], "1,2": ["x+1=1,x+1=2"]},
    "capital letters": {
        r"\theta": [r"\Theta"], r"(\theta,1)": [r"(\Theta,1)"], "r_1": ["R_1"], "x_n": ["x_N"],
        r"\bar{x}": [r"\bar{X}"],
        "r": [r"\mathrm{R}"], "a": [r"\text{A}"],
    },
    "products, angles and choices": {
        r"\frac{11}{4}": ["2(3/4)", r"2\left(\frac34\right)"], r"\angle BAC": [r"\angle ABC"],
        "|z|^2+i": ["z^2+i"], "B": ["(A) B", "C: B"], r"\text{(C)}": [r"\text{(B) C}"], "A": ["(A)^2"],
    },
    "plain": {
        "27": ["28", "-27", "27.01"], "2": ["1,2,3", r"\{2, 3\}", r"1 \text{ or } 2", r"\pm 2"],
        "(1,2)": ["(2,1)", "[1,2]"], "a + b + c": ["a + b"], "2 t": ["2"], "x+1": ["x"], "2e-27": ["1.325e-27"],
        "4.4e7": [r"4.4 \cdot 7 \cdot e"],  # how math-verify reads 4.4e7
        r"\frac{1}{m} t": [r"\frac{1}{m}"],  # t is no tonne
        "5.3e-9": ["0"], "10^{30}": ["10^{30} + 1"], r"\text{even}": [r"\text{odd}"], "0": [r"\frac{0}{0}"],
        r"\infty": [r"-\infty", "7"], "7": [r"\infty"],
        # Ground truths that math-verify cannot read, and what it would read instead.
        r"\frac{": [r"\frac{", "0"], "t(0,4]": ["(0,4]"], r"\frac{0}{0}": ["0"],
        r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}": [r"\frac{1}{3} E_{1}+\frac{1}{3} E_{2}", r"\frac{2}{3}"],
    },
    "several boxes": {
        "(6,2)": [r"\boxed{(2,2)} \quad \text{and} \quad \boxed{(6,2)}"], "3": [r"\(\boxed{3}\) and \(\boxed{8}\)"],
        "8": [r"\(\boxed{3}\) and \(\boxed{8}\)", r"$x = \boxed{3}$ or $y = \boxed{8}$"],
        "3,8": [r"\boxed{3} \text{ and } \boxed{9}", r"\boxed{3} is not what was asked for. It is \boxed{8}"],
    },
    "assignments": {
        "(x, y) = (1, 2)": ["(x, y) = (1, 2, 3)", "(x, y, z) = (1, 2)"],
        "(k, n) = (45, 2)": ["(n, k) = (45, 2)", "n = 45, k = 2"], "5": [r"x = 6 \\ y = 5"],
        "k = 45, n = 2": ["2, 45", "(2, 45)", "k = 2, n = 45", "45", "k = 45"], "2": ["k = 45, n = 2"],
        "x_1=5, x_2=-2": ["5, 2", "5"], r"\frac{-3+\sqrt{5}}{4}": [r"\frac{-3 \pm \sqrt{5}}{4}"], "x = 4": ["y = 4"],
    },
    "percent": {
        r"28\%": ["29 percent", "0.0028"], "1": [r"1\%"],
        "50%": ["5000"], "0.5": ["50", r"0.5\%"], "50": [r"5 \text{ percent}"],
    },
    "commas": {
        "1,22": ["1.22"], "-3,0": ["-3.0", "-3"], "1.22": ["1, 22", "1,23"], "122": ["1,22"], "1.222": ["1,222"],
        "1": ["1,22"], "31250": ["31 251"],
    },
    "rounding": {
        "1267650600228229401496703205376": ["1267650600228229401496703205377.0", "1267650600228229401496703205376.5"],
        "1267650600228229401496703205376.0": ["1267650600228229401496703205377"],
        "1" + "0" * 60: ["1" + "0" * 59 + "1.0"],
        "(0.000001, 1)": ["(0.000002, 1)"], r"\{0.000001, 1\}": [r"\{0.0000014, 1\}"],
        r"\begin{pmatrix} 0.000001 & 1 \end{pmatrix}": [r"\begin{pmatrix} 0.0000014 & 1 \end{pmatrix}"],
        "3": ["2.9999"], "0": ["0.0000001"], r"\frac{1}{3}": ["0.33"], "1000000": ["1000000.1"],
        "10000000000000000000000000000000000000": ["10000000000000000000000000000000000001"],
    },
    "inequalities": {
        "1<x<2": ["1,2", r"\{1,2\}", "x=1,2"], r"x\in(1,2)": [r"\{1,2\}"], "1,2": ["1<x<2"],
        "x<1 or x>2": [r"(-\infty,1]\cup(2,\infty)", "(1,2)", r"(-\infty,1)", "x<1", r"y<1 \text{ or } y>2", "1,2"],
        "1<x<3": [r"x>1 \text{ or } x<3"], "x>1 or x<3": ["(1,3)"], "(-2, 2]": ["x^2 < 4"],
        "(1,2]": ["1 < x < 2", r"x \le 2"], r"1 < x \le 2": ["[1, 2]"], "x > 3": ["y > 3"], "(-2, 2)": ["x^2 < 4"],
    },
    "written out": {
        "5050": [r"\sum_{k=1}^{100} k"], "120": [r"\binom{10}{3}", r"{10 \choose 3}", "5!"],
        "1591": [
            r"37 \cdot 43", r"x = 37 \times 43", r"\frac{37}{1/43}", r"37\div\frac{1}{43}", r"\frac{37}{43^{-1}}",
            r"\frac{\frac{3182}{2}}{1}", r"\frac{1591x}{x}", "1591x^0", r"e^{\ln 1591}", r"\ln e^{1591}",
        ], "100000": [r"10^2 \cdot 10^3"], "-6": [r"-2 \cdot 3"], r"8\pi": [r"2^3 \pi"],
        "-2": [r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}", r"\det \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"],
        "7": ["3 + 4", "10 - 3"], r"\frac{5}{6}": [r"\frac{1}{2} + \frac{1}{3}"], "1024": ["2^{10}"],
        "4": [r"\sqrt{16}"], "3": [r"\log_2 8", r"\lfloor \pi \rfloor"], "6": [r"\gcd(12, 18)", r"\lcm(2, 3)"],
        r"\frac{1}{2}": [r"\int_0^1 x dx"], r"\frac{\pi^2}{6}": [r"\sum_{k=1}^{\infty} \frac{1}{k^2}"],
        r"\frac{1591\sqrt2}{2}": [r"\frac{37 \cdot 43\sqrt2}{2}"], "(1591, 2)": [r"(37 \cdot 43, 2)"],
        r"\begin{pmatrix} 4 & 6 \end{pmatrix}": [
            r"\begin{pmatrix} 1 & 2 \end{pmatrix} + \begin{pmatrix} 3 & 4 \end{pmatrix}",
        ],
    },
    "bases": {"101_2": ["101_3", "101", "5", "110_2"], "101": ["101_2"]},
    "units": {
        r"20 \text{ days}": [r"20 \text{ square units}", r"20 \text{ hours}"],
        r"15\mbox{ cm}^2": [r"15 \text{ cm}", r"15 \text{ m}^2"], "15 cm^2": ["15 cm", "15 m^2", "16 cm^2"],
        r"12\text{ km/h}": [r"12\text{ m/s}", r"12\text{ km/s}", r"12\text{ km}"], r"12\text{ km}": [r"12\text{ km/h}"],
        "2": [r"2\text{ hours or 3 hours}", r"2\text{ m/s or 3 m/s}"], "5": [r"5\text{ days or more}"],
    },
    "equations": {"xy=0": ["x^2y=0", "x^2y^2=0"], "xy=1": ["xy=2"]},
    "words": {
        r"5\text{ million}": [r"5\text{ billion}", "5"], "5": [r"5\text{ million}", r"5\text{ or more}", "5 or more"],
        "3": ["3 squared", r"\text{-}3", r"3\text{!}", *(rf"3\text{{ {words}}}" for words in AFTER.split(", ")),
              *(rf"\text{{{words} }}3" for words in BEFORE.split(", "))],
        r"5\text{ or more}": ["5", r"5\text{ or less}"], r"\frac{3}{2}": ["3 1/2", "31/2"],
        "1, 2, 3": [r"1\text{, }2\text{, and }4"],
    },
    "upright constants": {
        r"2\mathrm{e}": ["2"], r"1 - \frac{1}{\mathrm{e}}": [r"1 + \frac{1}{\mathrm{e}}"], "3i": ["3"],
        "5": [r"\text{-5}"],
    },
    "answer in tags": {
        "5": [r"\boxed{5}</think><answer>6</answer>", "<answer></answer>", r"\boxed{5} <answer>6</answer>"],
        "8": ["<answer>3 or 8</answer>"],
    },
    "Unicode mathematics": {
        "2": ["The answer is 2\u221a3.", "2\u00bd"], "6": ["2\u00d73"], "4": ["2\u00b2"], "60": ["6\u00b0"],
    },
    "functions of programs": {r"\ln 2": ["ln(3)", "2"], "x^2": ["x**3"], "2": ["2*pi", "exp(2)"]},
    "repeating decimals": {"0.3": [r"0.\overline{3}"], r"\frac{1}{6}": [r"0.\overline{16}"], "0": [r"0.\overline{3}"]},
    "points without decimals": {"12": [r"1.\,2"], "0": [r"0.\overline{AB}"]},
    "Chinese": {
        "2": ["2\\text{\u4e07}", "2\u4e07"], "12": ["12\u4e07\u5143"],
        "5": ["5\u500d", "5\u534a", "\u8d1f5", "\u6839\u53f75", "5\u7684\u5e73\u65b9", "\u5927\u4e8e5",
              "The answer is 5\u4e07.", "3\u62165"],
    },
    "a last box that is never closed": {
        "5": [r"\boxed{5}. That forgets the sign, so it is \boxed{-5", r"\boxed{5"], "-5": [r"\boxed{5} or \boxed{-5"],
    },
    "lists, sets and tuples": {
        r"\{\{1\},\{2\}\}": [r"\{1,2\}"], r"\{1,\{2\}\}": [r"\{1,2\}"], r"\{1,2\},\{3,4\}": ["(1,2),(3,4)"],
        "(1,2),(3,4)": [r"\{1,2\},\{3,4\}"],
        "2, 1": ["(1,2)"], r"\{1, 2\}": ["(1,2)"], "(1,2)": [r"\{1,2\}", "2, 1"], "(1, 2, 3)": ["3, 2, 1"],
    },
    "standard LaTeX": {
        r"\frac{R}{r}": ["1", r"\frac{r}{R}"], "N=n": ["N=n+1"], r"\gamma^2-1": [r"\gamma^2+1"],
        "1": [r"\varnothing"], "E_1": ["E_2"], "R^2": ["r^2"],
        r"\frac{dM}{dt}=\frac{1}{c^2}": [r"\frac{dM}{dt}=\frac{1}{c^3}", r"\frac{dt}{dM}=\frac{1}{c^2}"],
        r"\frac{dy}{dx}": [r"\frac{dx}{dy}"], "2x": [r"\frac{d}{dx} x^2"], r"\frac{1}{2004!}": [r"\frac{1}{2006!}"],
    },
    "nouns": {
        "5": ["5 dozen", "5 hundred"], r"\text{east}": ["seat", r"\text{east} + 1", r"\text{seat}"],
        "east": ["seat"], "no": ["on"], "5 km": ["5 m", "6"],
        r"2\text{ hours }30\text{ minutes}": [r"30\text{ hours }2\text{ minutes}", "60"], "5 dollars": ["5 euros"],
        "2t": ["2"], "IX": ["XI"], "5 MW": ["5 mW"], r"5\,\mathrm{mHz}": [r"5\,\mathrm{MHz}"],
    },
    "layout commands": {
        "5": [r"\displaystyle 6", r"\begin{aligned} x &= 5 \\ y &= 6 \end{aligned}", r"\Rightarrow 6", r"\smash{6}5"],
        "(1,2)": [r"\bigl(2,1\bigr)"], r"\frac{1}{6}": [r"\text{6/1}"], r"\binom{10}{3}": [r"{10 \choose 4}"],
    },
    "nothing left to work out": {
        "4, 2": [r"3 \pm 1"], "7": [r"\sqrt{49}"], "6": ["3!", r"6^1 \cdot 1^5"],
        "10": [r"\binom{5}{2}", r"\dbinom{5}{2}"], "-1": [r"(1+\sqrt2)(1-\sqrt2)"], "(3,4)": [r"(\sqrt{9}, 4)"],
        "3, 4": [r"\sqrt{9}, 4"], r"\{3,4\}": [r"\{1+2, 4\}"], "0.5": [r"\sin 30^\circ"],
        r"\frac{1}{2}": [r"\cos \frac{\pi}{3}"], r"24\pi": [r"4 \cdot 6\pi"], "16": ["4^2"],
        "8": ["2^3"], "[0, 4]": ["[0, 2^2]"], "3": ["|{-3}|"], "5": [r"\sum_{k=1}^{5} 1"], "15": [r"\sum_{k=1}^{5} k"],
        "x = 15": ["x = 7 + 8"],
    },
    "a left side in words": {
        r"\arg z=\frac\pi3": [r"|z|=\frac\pi3", r"z=\frac\pi3"], "A=5": [r"\det A=5"],
        r"P(A\cap B)=\frac16": [r"P(A\cup B)=\frac16"], r"P(A\mid B)=\frac16": [r"P(B\mid A)=\frac16"],
        r"A\cap B=\{1\}": [r"A\cup B=\{1\}"], "a:b:c=1:2:3": ["c:b:a=1:2:3"], "(AB,BC)=(3,4)": ["(BC,AB)=(3,4)"],
        r"\vec a\times\vec b=(1,2,3)": [r"\vec b\times\vec a=(1,2,3)"], r"P(X\le 2)=0.3": [r"P(X\ge 2)=0.3"],
        "a=b=2, c=3": ["b=c=2, a=3"],
        "5": [r"\text{Area} = 6", r"\text{Area} = 2 + 3", r"\text{Area} < 5", r"\text{Area} \ge 5",
            r"x = \binom{5}{1}"],
        "x=10, y=6": [r"x=\binom{5}{2}, y=6", r"x=10, y=\binom{4}{2}"],
        r"\text{Area} = 5": [r"\text{Perimeter} = 5"], r"\frac{1}{6}": [r"P(A \cap B) \neq \frac16"],
    },
    "ratios and times": {
        "1:2:3": ["1:3:2", "1/6", "6", r"\frac{1}{6}", "1{:}2{:}4"], "3:30": ["1:10", "3{:}31", r"\frac{1}{10}"],
        "3:30 PM": ["3:30 AM"], r"7:15\text{ PM}": [r"\frac{7}{15}"],
        "12:01": ["12"], "12:00": ["6:00"], "2:45": ["4:90"], "1:2": ["2:1"], "1:2:3:4": ["1:2:4:3", "1:2:3"],
        r"\frac{1}{6}": ["1:2:3"], "(2,3)": ["1:2:3"], "2, 3": ["1:2:3"],
    },
    "repeated values": {
        "x>2": [r"x>2, x \in \mathbb{Z}"], "5-2": ["3"],
        "1,1,2": ["1,2", "1, 2, 3"], "2,2,3": ["2,3,3"], "2,2": ["2"], "2, 2, 3": [r"\{2,3\}"],
        r"\{2,2,3\}": [r"\{2,3\}"], "1": ["[1,1]"], "1,1": ["[1,1]"], "(1,1),(1,1),(2,3)": ["(1,1),(2,3)"],
        r"\frac{1}{2}, \frac{1}{2}, 1": ["0.5, 1"], "3,3,3": ["3,3"], "x, x, y": ["x, y"],
    },
    "units in several commands": {
        r"5\text{ m/s}": [r"5\,\mathrm{km}/\mathrm{s}"], "5": [r"6\,\mathrm{m}/\mathrm{s}", r"5(\text{thousand})",
            "5 hrs 30 min", r"5(x)"],
        r"20^\circ C": [r"20^\circ F"], r"20^\circ\mathrm{C}": [r"20^\circ\mathrm{F}"],
        r"5\text{ m}": [r"5\,\mathrm{m}/\mathrm{s}"], r"60^\circ": [r"60\text{ rad}", r"60\text{ radians}"],
    },
    "choices with their text": {
        "B": [r"\textbf{(C) }12", "C: 12", "12", "(A) 11 (B) 12", "B: 12, C: 13", "A, B", "B or C", "Option C", "C)",
            "Option C: 12", r"\textbf{B}. 12 \textbf{C}. 13", r"\textbf{B.} or \textbf{C.}", "Answer: B or C",
            r"(\text{C}) 12"],
        r"\textbf{(B) }12": [r"\textbf{(C) }12", "C", "13"],
    },
    "arguments without braces": {
        r"\sqrt{\pi r}": [r"\sqrt\pi r"], r"x^{\frac{1}{2}y}": [r"x^\frac12 y"],
        r"\frac{1}{3\sqrt{2}}": [r"\frac13\sqrt2"], r"\sqrt[3]{2x}": [r"\sqrt[3]2 x"],
        r"\frac{1}{\pi r}": [r"\frac1\pi r"], "4": [r"\sqrt\frac{32}{2}"],
    },
    "what math-verify cannot read": {
        r"\vec{v} = \langle 1,2\rangle": [r"\vec{u} = \langle 1,2\rangle"],
        r"\langle 1,2 \rangle": [r"\langle 2,1\rangle"], r"\langle 12,3 \rangle": [r"\langle 1,23\rangle"],
    },
    "a formula and its domain": {
        "f(x)=2x": [r"f(x)=3x \text{ for all } x \in \mathbb{R}", r"f(x)=2x \text{ or } f(x)=3x \text{ for all } x"],
        r"2k\pi, k \in \mathbb{Z}": [r"2k\pi, k \in \mathbb{N}"], "2": [r"2 \text{ if } x > 0"],
    },
    "upright letters and commands": {
        r"2\mathrm{\pi}": ["2"],
        "2": [
            r"2\mathrm{\pi}", r"2\mathrm{x}", r"2\text{x}", r"2\mathit{\sqrt{3}}", r"2\textrm{\alpha}", r"2\textup{k}",
            r"2\mathsf{x}", r"2\operatorname{x}", r"2\mathrm{\ln 2}", r"2\mathbb{N}", r"2\hbar", r"2\ell",
            r"2\mathcal{N}", r"2\text{ $\pi$}", r"2\mbox{\pi}",
        ],
        r"2\mathrm{x}": ["2"], r"2\textbf{y}": ["2"], r"3\mathrm{\sqrt{2}}": ["3"], r"5\mathrm{n}": ["5"],
    },
    "mixed numbers": {
        r"\frac{1}{4}": ["1 1/4"], r"\frac{11}{4}": ["1 1/4"],
        "1 1/4": [r"\frac{11}{4}"],
    },
    "or in any spelling": {
        "3": ["3\u62164", r"x = 3 \vee x = 4", "either 3 or 4", "3 oder 4", "3 et 4"], "4": ["3\\text{\u6216}4"],
        "3, 5": ["3\u62164"],
    },
    "structure": {
        "y = 2x": ["y' = 2x"], "f(x)=2x": ["f'(x)=2x"], "y' = 2y": ["y'' = 2y"], "2^T": ["2"], "(1+r)^T": ["1+r"],
        "3 to 2": ["2 to 3"], "1 in 6": ["6 in 1"], "2h30m": ["30h2m"], "5 R 2": ["2 R 5", "10R"],
        "24abcd": ["24"], "3-1": ["2"], "3/4/2020": ["3/8080"], "2020-05-06": ["2009"],
        r"5\%": [r"\$5", r"5\text{ people}"], "(3,1]": ["(2,1]"], "(2,1)": ["[2,1]"],
        "5": ["5\u2030", r"5\text{ tens}"], "1A_{16}": ["1A"], r"\text{A, BC}": [r"\text{AB, C}"],
        "2": [r"\text{none of } 2", "2ABC"], "-5": [r"5 \text{ below zero}"], "(1,2)": ["1 < x < 2"],
        r"x \equiv 3 \pmod{7}": [r"x \equiv 3 \pmod{5}"], "0.(3)": ["0"], "1,3,2": ["(1,2,3)"],
        r"1,2,\ldots,10": ["1,2,10"], r"\{1,2,\ldots\}": [r"\{1,2\}"],
    },
    "numbers side by side": {
        "12": ["1 2", r"1\,2", r"1\phantom{0}2"], "3": ["1 2"], "6": ["1 2 3"], "105": ["10 5"], "x=23": ["x=2 3"],
        r"11\frac12": [r"1 1\frac12"], "1, 23": ["1, 2 3"], r"\frac{12}{5}": [r"\frac{1 2}{5}"],
    },
    "another choice in the text": {"B": [r"\textbf{(D) }B", r"\mathrm{(D)}\ B", r"A: \text{B}"], "E": ["(A) E"]},
    "letters and dots beside numbers": {
        r"2\pi": [r"2\pi\mathrm{r}", r"2\pi\text{ k}"], "2": [r"\mathrm{x}+2", r"\mathrm{x}^2+2"],
        "x": [r"x\mathrm{y}"], "5": ["5\u7684\u9636\u4e58", "\u7b2c5\u4e2a"],
        "1,2,3": [r"1,2,3\ldots", "1,2,3..."], r"\{1,2,3\}": [r"\{1,2,3\ldots\}"],
    },
    "angles and units that differ in one place": {
        r"90^\circ": ["90'", "90''"], r"\tan 15^\circ": [r"\tan 15"], r"\csc 10": [r"\csc 10^\circ"],
        r"10\%, 20\%": [r"10\%,20"],
        r"\tan 50^\circ+\tan 70^\circ": [r"\tan 50^\circ+\tan 70"], "45": [r"30^\circ15'"],
        r"2\operatorname{cis}60^\circ": [r"2\operatorname{cis}60"], r"30^\circ15'": [r"15^\circ30'"],
        r"3\text{ m}, 4\text{ m}, 5\text{ cm}": [r"3\text{ m}, 4\text{ cm}, 5\text{ cm}"],
        r"5\text{ m s}^{-1}": [r"5\text{ m s}^{-2}"], "2:3": ["20:31"], "3:30": ["33:00"],
    },
    "restrictions": {
        "f(n)=n": [r"f(n)=n \text{ for all } n \ge 2"], "n^2": [r"n^2 \text{ for all prime } n"],
        "ax": [r"ax\text{ where }a=\frac12"], "f(x)=2x": [r"f(x)=2x \text{ for every } x\in[0,1]"],
        r"k\pi, k\in\mathbb{Z}": [r"k\pi, k\in\mathbb{Z}, k\equiv 1\pmod 3", r"k\pi, k\in\mathbb{Z}, 3\mid k"],
        r"k\pi, k\in\mathbb{Z}, k\ge 3": [r"k\pi, k\in\mathbb{Z}, k\ge 4"],
        "3,-2": [r"x=3, x=-2\text{ (rejected)}"], r"\binom{10}{3}": [r"\binom{10}{4}"],
    },
    "drafts before the answer": {
        "6, 5": [
            r"We get $\boxed{6}$. Wait, that is wrong, so it is $\boxed{5}$.", r"$\boxed{6}$, or rather $\boxed{5}$",
        ],
        "5": ["The answer is 5\u00b2.", "The answer is 5\u207b\u00b9."], "10": ["The answer is 10\u2075."],
        "1,2": [r"$\boxed{1}$, $\boxed{1}$ and $\boxed{3}$"],
    },
}
# fmt: on


def cases() -> list[tuple[str, str, str, bool]]:
    """All as (class, ground truth, response, whether it is right)."""
    return [
        (kind, ground_truth, response(answer), right)
        for right, classes in ((True, EQUAL), (False, UNEQUAL))
        for kind, ground_truths in classes.items()
        for ground_truth, answers in ground_truths.items()
        for answer in answers
    ]


def response(answer: str) -> str:
    is_whole = r"\boxed" in answer or "answer" in answer
    return "<think>so</think> " + (answer if is_whole else rf"The answer is $\boxed{{{answer}}}$.")


def benchmark_answers(copies: Path) -> list[tuple[str, int, str]]:
    """Benchmark, row and ground truth of all rows in local copies of the benchmarks."""
    found = []
    for source in BENCHMARKS:
        lines = (copies / source.path / f"{source.split}.jsonl").read_text(encoding="utf-8").splitlines()
        answers = [final_answer(json.loads(line)[source.ground_truth], source.is_boxed) for line in lines]
        found += [(source.name, row, answer) for row, answer in enumerate(answers)]
    return found
