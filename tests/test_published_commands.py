"""Whether the benchmark of published commands sees what scripts start, and leaves alone what is outside."""

from pathlib import Path

from captured_commands import captured

SCRIPTS = {
    "seeds.sh": """\
set -e
for seed in 1 2; do
    python3 -m program seed=$seed "text=a b" > "log-$seed" 2>&1 &
done
wait
""",
    "variable.sh": """\
set -u
MODEL=${MODEL:-small}
export LOGGER=file
python train.py "model=$MODEL" "data=$DATA_HOME/train" size=$(python3 -c 'import package' && echo 2 || echo 1)
""",
    "uv.sh": """\
set -euo pipefail
pip install package
rm -rf "$OUTSIDE"
curl https://example.com > /dev/null
cd scripts
uv run --isolated -m program a=1
ray job submit --address=here -- bash inner.sh
""",
    "scripts/inner.sh": "torchrun --nnodes=1 train.py\n",
    "page.md": "Text.\n\n```yaml\nrl: grpo\n```\n\n```bash\naxolotl train\n```\n\n```yaml\nrl: dpo\n```\n",
    "config.yaml": "rl: grpo\n",
    "nothing.sh": 'echo "Usage: nothing.sh NAME"; exit 1\n',
}


def test_commands_of_scripts_are_kept_and_not_run(tmp_path):
    examples, outside = tmp_path / "examples", tmp_path / "outside"
    outside.mkdir()
    tmp_path.chmod(0o777)
    for name, text in SCRIPTS.items():
        file = examples / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("$OUTSIDE", str(outside)))
    with captured(examples, map(Path, SCRIPTS)) as commands:
        words = {str(script): [command.words for command in of_script] for script, of_script in commands.items()}
        (variable,) = commands[Path("variable.sh")]
        folder = variable.folder
        on_page = [(folder / command.words[-1]).read_text() for command in commands[Path("page.md")]]
        assert (folder / "seeds.sh").exists() and folder != examples  # a copy, for what reads configurations
    assert sorted(words["seeds.sh"]) == [("python3", "-m", "program", f"seed={seed}", "text=a b") for seed in (1, 2)]
    assert words["variable.sh"] == [("python", "train.py", "model=small", "data=data_home/train", "size=1")]
    assert variable.environment["LOGGER"] == "file"
    assert words["uv.sh"] == [
        ("uv", "run", "--isolated", "-m", "program", "a=1"),
        ("torchrun", "--nnodes=1", "train.py"),
    ]
    assert words["scripts/inner.sh"] == words["uv.sh"][1:]
    assert on_page == ["rl: grpo\n", "rl: dpo\n"] and words["config.yaml"] == [("axolotl", "train", "config.yaml")]
    assert words["nothing.sh"] == []
    assert outside.is_dir() and not folder.exists()
    assert sorted(path.name for path in examples.iterdir()) == sorted({name.split("/")[0] for name in SCRIPTS})
