"""Pages for people: the dashboard and what feeds it.

`dashboard.html` is one self-contained file. `recent` keeps the last requests that ended well, `feed` puts
together what the page shows, once a second however many watch. Nothing here knows how an API's answers look.
"""
