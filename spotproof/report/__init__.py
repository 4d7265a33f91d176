"""One renderer for a run's story: the same page for the command line, the dashboard and the rehearsal.

`story.tell` makes a `model.Story` of a run's history and loss logs; `html.page` and `text.summary` show it. Standard
library only; a page is one file, with no script and nothing from elsewhere.
"""
