"""Executes examples/python/long_document.ipynb with the default model; skipped where that is not there. Its last cell leaves a plot."""
import os
import sys

import nbclient
import nbformat
import specextend


def main():
    try:
        specextend._core.default_model()
    except specextend.Error as error:
        print(error)
        return 77
    path = os.path.join(sys.argv[1], "examples", "python", "long_document.ipynb")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the committed notebook has outputs: clear them"
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds, kinds
    text = "".join(output.get("text", "") for output in outputs)
    assert "equal: True" in text, text
    print("notebook: executed;", text.strip().splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
