"""With this folder on PYTHONPATH, Python finds no vLLM. TRL would import it wherever it is installed, for seconds."""

import sys

sys.modules["vllm"] = None
