"""Settings of Sphinx. The version is given on the command line."""

from __future__ import annotations

project = "meshbus"
language = "en"
extensions = ["myst_parser"]
myst_heading_anchors = 6  # every heading can be linked to, as on a forge

html_theme = "furo"
html_title = "meshbus"
# Without an icon, a browser asks the server for a file that is not there.
html_favicon = "../../src/meshbus/web/static/icon.svg"
html_show_copyright = False
html_copy_source = False
html_use_index = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
