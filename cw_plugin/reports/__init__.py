"""The paper's tables and figures from your runs: ``cw-grpo report`` and ``cw-grpo tokens``.

For programs of one's own:

- :mod:`~cw_plugin.reports.formats`: ``Table(name, title, frame, notes)`` holds a DataFrame, whose first column names
  the row; ``.markdown()``, ``.html()``, ``.csv()``, ``.latex()``.
- :mod:`~cw_plugin.reports.intervals`: ``over_seeds(ours, theirs)`` compares two Series by seed and gives
  ``value, low, high, p, paired``; ``mean_over_seeds(values)`` gives mean, low, high; ``holm(p, tests)`` corrects a dict
  of p-values; ``pass_at_1`` and ``over_questions`` are of answers.
- :mod:`~cw_plugin.reports.figures`: ``curves({name: [Series by step, one of each seed]}, title, unit, window)``,
  ``contributions({name: tokens})`` (Figure 3), ``weights({name: tokens})``. Tokens are a DataFrame with the columns
  covariance, weight and, if a row stands for several tokens, count. ``new``, ``style`` and ``legend`` are for figures
  of another kind; ``save(figure, path, formats)`` writes SVG, PDF and PNG, the same bytes each time.
- :mod:`~cw_plugin.reports.covariance`: ``table_1(name, tokens)``, ``one_side(tokens, sign)``.
"""
