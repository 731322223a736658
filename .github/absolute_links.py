"""Makes the relative links of a README absolute, in place, because PyPI shows the page and has none of the files.

python .github/absolute_links.py README.md REPOSITORY TAG      such as https://github.com/OWNER/NAME v0.2.0
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def absolute(markdown: str, page: str, repository: str, tag: str) -> str:
    """``markdown``, whose links to files, folders and anchors of ``page`` lead to the repository at ``tag``."""

    def replace(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            return link[0]
        if target.startswith("#"):
            target = page + target
        view = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{view}/{tag}/{target})"

    parts = FENCE.split(markdown)  # every second one is a block of code
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    file, repository, tag = sys.argv[1:]
    path = Path(file)
    path.write_text(absolute(path.read_text(encoding="utf-8"), path.name, repository, tag), encoding="utf-8")
