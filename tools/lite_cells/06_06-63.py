unseen = [-np.inf] * 4
halves = {
    "blocks 1 and 2": [*rows[:2], unseen, unseen],
    "blocks 3 and 4": [unseen, unseen, *rows[2:]],
    "merged": rows,
}
fig, axes = figure(9.5, 2.3, ncols=3)
for ax, (name, half) in zip(axes, halves.items(), strict=True):
    draw_weights(ax, sum(half, []), 4, 4, outlines=False)
    m, total, out = read(half)[-1]
    ax.set(title=name, xlabel=f"m {m:.1f}, total {total:.2f}, out {out:.2f}")
