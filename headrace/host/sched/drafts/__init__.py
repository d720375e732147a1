"""How many drafts each row checks.

Owns what is measured of drafts: how often they agree (`track`), what a step with drafts costs (`price`), what
late drafters read (`reading`), and the choice that follows (`depth`). Must not know how drafts are made. Read
in this order.
"""
