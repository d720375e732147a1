"""Who of several tenants goes first, and how much each may take.

Owns what each tenant has and has had (`account`), the order within a tenant and its ageing (`rank`), the line
of those who wait (`line`), who may queue up (`door`), parts of the KV pool (`share`), when the background may
join (`background`), and deadlines (`deadlines`, `late`). Must not know rows or tokens. Reading order: `rank`,
`account`, `line`, `door`, `share`, `background`, `deadlines`, `late`.
"""
