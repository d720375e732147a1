"""What is shown of a load: JSON and Markdown (`tables`), charts as values (`charts`), files of them (`plot`).

Owns words and pictures. Must not send requests or compute figures.
"""
