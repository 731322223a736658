#!/usr/bin/env bash
# The whole study on a machine without a GPU, about 14 hours on two cores; run again, it goes on where it was interrupted.
#
#   bash examples/study/run.sh
#
#   WORK     where runs are written        default runs/study
#   RESULTS  where they are gathered       default WORK/results; a run that is there is not done again
#   PYTHON   the interpreter to build on   default python3 (3.10, 3.11 or 3.12)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${VENV:-$here/../../.venv}

bash "$here/../cpu/install.sh" "$venv"
export PATH=$venv/bin:$PATH
export WORK=${WORK:-$here/../../runs/study}
export RESULTS=${RESULTS:-$WORK/results} # the README's section is written from examples/study/results alone
python "$here/study.py"
# Measured once, on the starting model.
[ -e "$RESULTS/gradients.parquet" ] || cp "$here/results/gradients.parquet" "$RESULTS"
python "$here/report.py" study "$RESULTS"
echo "The page: $RESULTS/README.md"
