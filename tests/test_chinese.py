"""Chinese as people in the field write it: one word for one thing, in all that readers see."""

import re

import pytest

from lab.trials.runs import project_root

ROOT = project_root()
TEXTS = [
    *(ROOT / "experiments").glob("*.yaml"),
    *(ROOT / "lab" / "languages").glob("*.po"),
    *(ROOT / "notebooks").glob("*.ipynb"),
    *(ROOT / "lab" / "book" / "texts" / "zh").glob("*.md"),
    *(ROOT / "lab" / "book" / "templates").glob("*"),
    ROOT / "README.zh.md",
]
ODD = {
    "半大模型": "一半大小的模型", "机会水平": "随机水平", "单字频率": "字节频率", "核·分钟": "单核分钟", "补齐": "填充",
    "附注": "笔记 or 备注", "证实": "支持 (proved is 证明)", "可测量的笔记本": "笔记本", "反驳": "不支持",
    "书中": "本章",
}  # fmt: skip


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_odd_word_stands_in_a_text(path):
    text = path.read_text("utf-8")
    assert {word: right for word, right in ODD.items() if word in text} == {}
    said = [line for line in text.splitlines() if re.search("[\u4e00-\u9fff]", line) and not line.startswith("#")]
    assert [line for line in said if re.search(r"\d nats\b|nats/|每字节 nats", re.sub(r"`[^`]*`", "", line))] == []
