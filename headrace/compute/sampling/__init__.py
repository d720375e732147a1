"""From logits to tokens: the definition that every backend follows, and what the runner needs for it.

Owns the order of operations, the noise and the per-slot sampling state. Must not know requests' text or who
is in the batch: the token of a row is a pure function of (its logits, its parameters, its seed, its position,
its own tokens so far).

Order of operations for one row of logits `l` [V] (float32):

1. **Check.** A NaN or +inf anywhere is error 1: the row draws nothing, the others are not touched. -inf is
   legal.
2. **Report.** Log-probabilities in answers are those of the raw model, taken here, before anything else:
   `l - max(l) - log(sum(exp(l - max(l))))`. Order of tokens, ranks included: larger value first, ties by
   lower id.
3. **Allowed mask.** Tokens whose bit is clear become -inf: those outside `allowed_token_ids`, and those that
   the request's grammar does not allow at this place.
4. **Bias.** Values are added; -inf bans (bad words, end tokens before `min_tokens`).
5. **Penalties.** For each distinct token of prompt and output:
   `l = l / repetition if l > 0 else l * repetition`; then, with `count` = occurrences in the output,
   `l -= count * frequency`, and `l -= presence` where `count > 0`.
   Afterwards, when every token is -inf, the row has error 2: nothing may be drawn; when one is +inf (a huge
   logit divided by a small penalty), error 1.
6. **Temperature.** Below 1e-6 the token is `argmax(l)`, ties to the lowest id, and the steps below do not
   apply. Else `l = (l - max(l)) / temperature`.
7. **min_p.** Drop tokens with `l < log(min_p)` (the best token has `l = 0`). Off at 0.
8. **top_k.** Keep the first k in the order of 2 (of `l`). Off at 0 and at k >= V.
9. **top_p.** Over what is left, in the order of 2, keep the shortest run whose probabilities (renormalised
   over what is left) sum to at least top_p; at least one. Off at 1. The weights `exp(l)` are rounded to
   multiples of 2^-35 (2^-29 above 2^18 tokens), so their sums in float64 are exact, whatever the order.
10. **Draw.** `argmax(l + noise(seed, position, id))` over what is left, ties to the lowest id: an exact draw
    from the softmax (Gumbel-max). `position` is the absolute position of the token to draw.

Noise: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011) with key `(seed mod 2^32, seed >> 32)` and
counter `(id >> 2, position, 0, 0)`; word `id & 3` of the block is the token's `w`. Then
`u = ((w >> 9) + 0.5) * 2^-23` (exact in float32, inside (0, 1)) and `noise = -log(-log(u))` in float32.
Words are the same in every backend; the logarithms may differ in the last bit between backends, never
within one.

Reading order: `noise`, `logprobs`, `sampler` (the definition in numpy), `state` (what a slot needs over its
life), `batch` (the arrays of one step), `seeds`.
"""
