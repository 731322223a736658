#!/usr/bin/env bash
# Takes the pictures of the pages, tokens.png and report.png, from what `cw-grpo demo` writes. Needs Chromium, and the
# extra "report" of this package.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pages=$(mktemp -d)
trap 'rm -rf -- "$pages"' EXIT
cw-grpo demo --out "$pages" >/dev/null

take() { # width,height, picture and page
    chromium --headless --no-sandbox --hide-scrollbars --window-size="$1" --screenshot="$here/$2" "file://$pages/$3" 2>/dev/null
}
take 1100,540 tokens.png 'tokens.html#record=0&group=5&token=10' # the wrong 5 of 19 + 4 = 25
take 1280,700 report.png report.html
