"""How the documentation is built: `sphinx-build -W --keep-going -b html docs docs/_build`."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from gallery import CAPTIONS, draw_gallery, gallery_page  # noqa: E402
from references import linked_docstring, linked_page, linked_types, references_page  # noqa: E402
from results_page import results_page  # noqa: E402
from studies import draw_studies  # noqa: E402

import pm_sysid  # noqa: E402

project = "pm_sysid"
author = "The pm_sysid developers"
copyright = author
version = release = pm_sysid.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
]
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
exclude_patterns = ["_build", "jupyter_execute", "*.py", "**/notebooks", "**/figures", "**/results"]
html_theme = "furo"
html_title = f"pm_sysid {release}"  # in the sidebar and in the titles of windows: which version a page is about
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")  # Read the Docs adds the list of versions itself
templates_path = ["_templates"]
default_role = "autolink"  # `simulate` in a docstring is a link
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_sphinx = False

# The API: signatures from the code, types and shapes from the docstrings.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_use_ivar = True

# Pages in Markdown; tutorials and examples are notebooks, run at every build.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_timeout = 1800  # of a cell, beside other work on the machine
nb_execution_show_tb = True  # a cell that fails is a warning, and so an error with -W
nb_merge_streams = True
nb_render_image_options = {"alt": "Figure drawn by the code above"}  # where a cell does not say more
nb_ipywidgets_js = {}  # progress bars are gone when a cell has ended: no script from another host for them
nb_mime_priority_overrides = [("html", "text/latex", 5)]  # equations as formulas, not as the text between dollars
suppress_warnings = ["myst-nb.lexer"]  # without execution (-D nb_execution_mode=off) scripts do not say their language
os.environ.setdefault("PM_SYSID_SHORT", "1")
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else every kernel says that its modules are frozen


def copy_examples() -> None:
    """Bring the scripts of `examples/` beside the other sources, with their notebooks for download."""
    import jupytext

    notebooks = HERE / "examples" / "notebooks"
    notebooks.mkdir(parents=True, exist_ok=True)
    for script in sorted((HERE.parent / "examples").glob("*.py")):
        page = HERE / "examples" / script.name
        if not page.exists() or page.read_bytes() != script.read_bytes():  # an unchanged page is not run again
            jupytext.write(jupytext.read(script), notebooks / f"{script.stem}.ipynb")
            shutil.copyfile(script, page)


def write_notebooks() -> None:
    """Write the tutorials as notebooks, for download."""
    import jupytext

    folder = HERE / "tutorials" / "notebooks"
    folder.mkdir(exist_ok=True)
    for page in sorted((HERE / "tutorials").glob("*.md")):
        file = folder / f"{page.stem}.ipynb"
        if page.stem != "index" and not (file.exists() and file.stat().st_mtime > page.stat().st_mtime):
            jupytext.write(jupytext.read(page), file)


def with_download(page: str, text: str) -> str:
    """Link the notebook of a tutorial below its title."""
    folder, _, name = page.rpartition("/")
    if folder != "tutorials" or name == "index":
        return text
    link = f"{{download}}`This page as a notebook <notebooks/{name}.ipynb>`"
    return re.sub(r"^(# .+)$", rf"\1\n\n{link}", text, count=1, flags=re.MULTILINE)


def write_pages() -> None:
    """Write the page of results from the saved files, and that of the references from their list."""
    for name, text in (("results.md", results_page(HERE.parent)), ("references.md", references_page())):
        page = HERE / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def write_gallery() -> None:
    """Draw every figure and those of the case studies, and write the page that shows them."""
    draw_gallery(HERE / "gallery")
    draw_studies(HERE / "gallery")
    page, text = HERE / "gallery.md", gallery_page()
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


def add_figure(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show the figure of a function that draws one below its docstring."""
    function = name.rpartition(".")[2]
    if function in CAPTIONS:
        lines += ["", f".. image:: /gallery/{function}.png", f"   :alt: {CAPTIONS[function]}", "   :width: 100%", ""]


def spread_notebooks(app: Any, env: Any, pages: list[str]) -> None:
    """Deal what is executed over all pages: processes read slices of this list, and all scripts were in one of them."""
    executed = [page for page in pages if page.startswith(("examples/", "tutorials/")) and not page.endswith("/index")]
    others = [page for page in pages if page not in executed]
    for k, page in enumerate(executed):
        others.insert(round(k * len(pages) / len(executed)), page)
    pages[:] = others


def link_references(app: Any, page: str, source: list[str]) -> None:
    """Link what a page cites, and its notebook."""
    if str(app.env.doc2path(page)).endswith(".md") and page != "references":
        source[0] = with_download(page, linked_page(source[0]))


def link_in_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Link what a docstring cites, and the types of the package among those of its parameters."""
    lines[:] = [linked_types(line, pm_sysid.__all__) for line in linked_docstring(lines)]


def setup(app: Any) -> None:
    """Add what Sphinx calls while it reads."""
    app.connect("env-before-read-docs", spread_notebooks)
    app.connect("source-read", link_references)
    app.connect("autodoc-process-docstring", link_in_docstring)
    app.connect("autodoc-process-docstring", add_figure)


copy_examples()
write_notebooks()
write_pages()
write_gallery()
