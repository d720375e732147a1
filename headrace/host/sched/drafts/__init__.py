"""How many drafts each row checks, and whose.

Owns what is measured of drafts: how often they agree (`track`), what a step with drafts costs (`price`), what
late drafters read (`reading`), and the choices that follow: between a lookup and a drafter (`ways`,
`trial`, `chooser`), and of how many (`depth`); a sequence's part is told by `story`. Must not know how drafts
are made. Read in this order.
"""
