"""The README's example in a notebook."""

import re

import nbclient
import nbformat

from conftest import ROOT


def test_the_example_in_a_fresh_notebook_shows_pictures_and_tables(db, tmp_path, monkeypatch):
    (text,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    to = db.connection.info
    text = re.sub(r'"postgresql://[^"]*"', repr(f"postgresql://postgres@{to.host}:{to.port}/{to.dbname}"), text)
    for name in ("HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    lines = text.strip().splitlines()
    cells = ["\n".join(lines[:-1]), "run", lines[-1], "run.leaderboard()"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in notebook.cells]
    assert "text/html" in shown[1] and "image/png" in shown[2] and "text/html" in shown[3]
    assert not any(output.output_type == "error" for cell in notebook.cells for output in cell.outputs)
    assert (tmp_path / "run.html").stat().st_size > 10_000
