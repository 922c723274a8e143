"""The README's example in a notebook."""

import re

import nbclient
import nbformat

from support.cluster import ROOT


def execute(cells, folder, monkeypatch):
    """A notebook with these cells, executed in a fresh kernel."""
    for name in ("HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def test_training_in_a_notebook_shows_its_progress(db, tmp_path, monkeypatch):
    db.run(
        "CREATE TABLE teas AS SELECT i AS id, i * 37 % 101 AS age, 7 AS same, i * 37 % 101 > 60 AS tea "
        "FROM generate_series(1, 200) i"
    )
    cells = [
        "from pg_mop_client import Selection",
        f"s = Selection({db.uri()!r}, seed=1)",
        "model = s.train('teas', 'tea_model', 'tea', id='id', max_trials=2, time_limit='60 s', baselines=False)",
        "print(model.training_report)",
    ]
    outputs = execute(cells, tmp_path, monkeypatch).cells[2].outputs
    text = "".join(output.get("text", "") for output in outputs)
    widgets = [output for output in outputs if "application/vnd.jupyter.widget-view+json" in output.get("data", {})]
    assert "NOTICE: " in text and ("model tea_model is trained: 100%" in text or widgets)


def test_the_example_in_a_fresh_notebook_shows_pictures_and_tables(db, tmp_path, monkeypatch):
    text = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.M | re.S)[1]
    to = db.connection.info
    text = re.sub(r'"postgresql://[^"]*"', repr(f"postgresql://postgres@{to.host}:{to.port}/{to.dbname}"), text)
    lines = text.strip().splitlines()
    cells = ["\n".join(lines[:-1]), "run", lines[-1], "run.leaderboard()"]
    notebook = execute(cells, tmp_path, monkeypatch)
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in notebook.cells]
    assert "text/html" in shown[1] and "image/png" in shown[2] and "text/html" in shown[3]
    assert not any(output.output_type == "error" for cell in notebook.cells for output in cell.outputs)
    assert (tmp_path / "run.html").stat().st_size > 10_000
