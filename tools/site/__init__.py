"""The site: the Markdown of the project as pages with search and versions, which need no server and no network."""
