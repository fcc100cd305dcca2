"""Exact weighted isotonic regression on the paper's partial order, kept up to date as samples come in.

The problem (e:quadratic_opt): the samples of cell (h, k) have a weight w and a mean m. Find x that minimises
Σ w (x − m)² and is nondecreasing in k, nonincreasing in h, and nondecreasing along the diagonal h = k.

The solution falls into *blocks* of cells with one value, the weighted mean of their samples. A region is one block,
unless it has a lower set (with each cell, all smaller ones belong to it) whose mean is below that of the whole; then
both parts are solved by themselves. Lower sets are staircases, one column a row, of which a dynamic programme finds the
best in time linear in the number of cells (`_staircase`). Cells of one column are cut more simply (`_cut_column`).

When samples change, only the blocks that they lie in are split again, and then joined with neighbours whose values
violate the order: the smallest union of whole blocks without gaps in the order is solved as one region (`_join`). Every
such step adds constraints that the solution violated, so it ends, at the same solution as solving everything.
Rows without samples are left out, which does not change the order of the others.
"""

import math

from dbw_controller.core.estimators.grid import Grid
from dbw_controller.core.kernels import compiled

# Two values are in order if they are not out of it by more than rounding, relative to their size.
ROUNDING = 1e-13
# A cell with less than this share of a region's weight may stand out from it without moving its mean by much.
LIGHT = 1e-3
# Repairing the solution costs about this many times more for a changed cell than solving all does for each cell.
WORTH_REPAIRING = 4


@compiled
def _mean(grid: Grid, region: int) -> tuple[float, bool]:
    """The mean of a region's samples, and whether a cell is so light that it hardly contributes."""
    weight, mean, stop, below = grid.weight, grid.mean, grid.stop, grid.below
    total = total_weight = 0.0
    lightest, segment = math.inf, region
    while segment >= 0:
        for cell in range(segment, stop[segment]):
            share = weight[cell]
            total += share * mean[cell]
            total_weight += share
            if 0.0 < share < lightest:
                lightest = share
        segment = below[segment]
    return total / total_weight, lightest < LIGHT * total_weight


@compiled
def _staircase(grid: Grid, region: int, threshold: float, below_it: bool) -> int:
    """Look for a lower set whose mean is below the threshold, or for an upper set whose mean is above it.

    The set with the least cost, Σ w (m − threshold) over its cells or the negative of that, is found row by row:

        F_i(s) = cost_i(s) + min F_{i−1}(q),    q ≤ s, and if s is right of the diagonal, so is q

    where s and q are the first upper columns of row i and of the row above. Only the set's own cells are added up: next
    to others of much larger weight they would be lost to rounding. Returns the number of rows, which `chain` and `cut`
    then describe, or 0 if there is no such set.
    """
    size, weight, mean, stop = grid.size, grid.weight, grid.mean, grid.stop
    best, choice, chain, cut = grid.best, grid.choice, grid.chain, grid.cut
    count = room = 0  # rows so far, and where the row's costs begin in `best`
    above_room = above_begin = above_row = 0  # there, column q of the row above is at above_room + q
    above_end = -1
    segment = region
    while segment >= 0:
        chain[count] = segment
        row, begin = segment // size, segment % size
        end = stop[segment] - row * size
        cost = 0.0
        if below_it:
            best[room] = 0.0
            for i in range(end - begin):
                cost += weight[segment + i] * (mean[segment + i] - threshold)
                best[room + i + 1] = cost
        else:
            best[room + end - begin] = 0.0
            for i in range(end - begin - 1, -1, -1):
                cost -= weight[segment + i] * (mean[segment + i] - threshold)
                best[room + i] = cost
        if count > 0:
            any_best = right_best = math.inf
            any_choice = right_choice = 0
            q = above_begin
            for s in range(begin, end + 1):
                while q <= s and q <= above_end:
                    candidate = best[above_room + q]
                    if candidate < any_best:
                        any_best, any_choice = candidate, q
                    if q > above_row and candidate < right_best:
                        right_best, right_choice = candidate, q
                    q += 1
                best[room + s - begin] += any_best if s <= row else right_best
                choice[room + s - begin] = any_choice if s <= row else right_choice
        above_room, above_begin, above_end, above_row = room - begin, begin, end, row
        room += end - begin + 1
        segment = grid.below[segment]
        count += 1

    least, column = 0.0, -1
    for s in range(above_begin, above_end + 1):
        if best[above_room + s] < least:
            least, column = best[above_room + s], s
    if column < 0:
        return 0
    for i in range(count - 1, -1, -1):
        begin = chain[i] % size
        room -= stop[chain[i]] - chain[i] + 1
        cut[i] = chain[i] + column - begin
        column = choice[room + column - begin]
    return count


@compiled
def _cut(grid: Grid, count: int) -> tuple[int, int]:
    """Cut a region along the staircase that was found, into a lower and an upper one; (−1, −1) if that was rounding."""
    weight, mean, stop, below, chain, cut = grid.weight, grid.mean, grid.stop, grid.below, grid.chain, grid.cut
    lower = upper = lower_weight = upper_weight = 0.0
    for i in range(count):
        for cell in range(chain[i], cut[i]):
            lower += weight[cell] * mean[cell]
            lower_weight += weight[cell]
        for cell in range(cut[i], stop[chain[i]]):
            upper += weight[cell] * mean[cell]
            upper_weight += weight[cell]
    if lower_weight == 0.0 or upper_weight == 0.0 or lower / lower_weight >= upper / upper_weight:
        return -1, -1

    lower_region = upper_region = -1
    for i in range(count - 1, -1, -1):
        segment = chain[i]
        end = stop[segment]
        if cut[i] < end:
            stop[cut[i]], below[cut[i]] = end, upper_region
            upper_region = cut[i]
        if cut[i] > segment:
            stop[segment], below[segment] = cut[i], lower_region
            lower_region = segment
    return lower_region, upper_region


@compiled
def _solve_region(grid: Grid, region: int, queued: int) -> int:
    """Solve a region by itself, and queue its blocks; returns how many are queued in all."""
    regions, count = grid.regions, 1
    regions[0] = region
    while count > 0:
        count -= 1
        region = regions[count]
        blocks = _cut_column(grid, region)
        if blocks > 0:
            for i in range(blocks):
                queued = _make_block(grid, grid.chain[i], grid.value[grid.chain[i]], queued)
            continue
        value, uneven = _mean(grid, region)
        rows = _staircase(grid, region, value * (1.0 - ROUNDING), True)
        if rows == 0 and uneven:  # cells above the mean may be too light for the others to be seen below it
            rows = _staircase(grid, region, value * (1.0 + ROUNDING), False)
        lower, upper = _cut(grid, rows) if rows > 0 else (-1, -1)
        if upper >= 0:
            regions[count], regions[count + 1] = upper, lower
            count += 2
        else:
            queued = _make_block(grid, region, value, queued)
    return queued


@compiled
def _cut_column(grid: Grid, region: int) -> int:
    """Cut a region of one column, as most are, into its blocks at once: `chain`, with their values.

    All its cells are in order. From the top down, each joins the block above it until that is larger. Returns the
    number of blocks, or 0 if the region has several columns.
    """
    size, weight, mean, value, stop, below = grid.size, grid.weight, grid.mean, grid.value, grid.stop, grid.below
    blocks, weights, last_above = grid.chain, grid.best, grid.cut
    count, segment, previous = 0, region, -1
    while segment >= 0:
        if stop[segment] > segment + 1 or (segment - region) % size != 0:
            return 0
        block, block_mean, block_weight = segment, mean[segment], weight[segment]
        while count > 0:
            above, above_weight = blocks[count - 1], weights[count - 1]
            if block_weight > 0.0 and above_weight > 0.0 and value[above] > block_mean:
                break
            block, total = above, above_weight + block_weight
            if total > 0.0:
                block_mean = (value[above] * above_weight + block_mean * block_weight) / total
            block_weight = total
            count -= 1
        if block == segment:
            last_above[count] = previous  # which need not be in the row above: that may have come later
        blocks[count], weights[count], value[block] = block, block_weight, block_mean
        count += 1
        previous, segment = segment, below[segment]
    for i in range(1, count):
        below[last_above[i]] = -1
    return count


@compiled
def _make_block(grid: Grid, region: int, value: float, queued: int) -> int:
    """Give all cells of a region one value, and queue it; returns how many blocks are queued in all."""
    values, segments, stop, block = grid.value, grid.segment, grid.stop, grid.block
    segment = region
    while segment >= 0:
        block[segment] = region
        for cell in range(segment, stop[segment]):
            values[cell] = value
            segments[cell] = segment
        segment = grid.below[segment]
    if not grid.queued[region]:
        grid.queued[region], grid.queue[queued] = 1, region
        queued += 1
    return queued


@compiled
def _violation(grid: Grid, block: int) -> int:
    """Find a cell next to a block that is out of order with it; −1 if there is none.

    Rows end up in order by themselves. So of the cells above a segment only the first, the smallest, is looked at, and
    of those beneath it only the last, the largest.
    """
    size, value, stops, below = grid.size, grid.value, grid.stop, grid.below
    previous_row, next_row = grid.previous_row, grid.next_row
    least = value[block] * (1.0 - ROUNDING)  # what larger cells must have
    most = value[block] * (1.0 + ROUNDING)  # what smaller cells may have
    segment = block
    while segment >= 0:
        stop: int = stops[segment]
        row, start = segment // size, segment - segment % size
        if segment > start and value[segment - 1] > most:
            return segment - 1
        if stop < start + size and value[stop] < least:
            return stop
        above: int = previous_row[row]
        if above < size and value[segment + (above - row) * size] < least:
            return segment + (above - row) * size
        beneath: int = next_row[row]
        if beneath < size and value[stop - 1 + (beneath - row) * size] > most:
            return stop - 1 + (beneath - row) * size
        if segment <= start + row < stop:
            if above < size and value[above * size + above] > most:
                return above * size + above
            if beneath < size and value[beneath * size + beneath] < least:
                return beneath * size + beneath
        segment = below[segment]
    return -1


@compiled
def _absorb(grid: Grid, block: int) -> int:
    """Take a block apart and its cells into the union; returns its last row."""
    size, first, last = grid.size, grid.first, grid.last
    row, segment = 0, block
    while segment >= 0:
        row = segment // size
        first[row] = min(first[row], segment - row * size)
        last[row] = max(last[row], grid.stop[segment] - row * size)
        grid.block[segment] = -1
        segment = grid.below[segment]
    return row


@compiled
def _join(grid: Grid, one: int, other: int) -> int:
    """Make a region of two blocks and all that lies between them in the order, in whole blocks."""
    size, first, last, next_row, previous_row = grid.size, grid.first, grid.last, grid.next_row, grid.previous_row
    top = min(one, other) // size
    bottom = max(_absorb(grid, one), _absorb(grid, other))
    grown = True
    while grown:
        # (h, j) lies between (h + 1, j) and (h − 1, j): the intervals' ends never move left further down.
        row = bottom
        while row != top:
            above = previous_row[row]
            first[above] = min(first[above], first[row])
            row = above
        while row != bottom:
            beneath = next_row[row]
            last[beneath] = max(last[beneath], last[row])
            row = beneath
        # A cell left of its diagonal is smaller than one right of its diagonal further down: the diagonals of the rows
        # from the one to the other lie between, and so do those outside that the first or last row reaches.
        left = previous_row[top]
        if left < size and left >= first[top]:
            while previous_row[left] < size and previous_row[left] >= first[top]:
                left = previous_row[left]
        else:
            left = top
            while left < size and first[left] > left:
                left = next_row[left] if left != bottom else size
        right = next_row[bottom]
        if right < last[bottom]:
            while next_row[right] < last[bottom]:
                right = next_row[right]
        else:
            right = bottom
            while right >= 0 and last[right] <= right:
                right = previous_row[right] if right != top else -1
        if left < right:
            row = left
            while True:
                first[row] = min(first[row], row, first[top] if row < top else row)
                last[row] = max(last[row], row + 1, last[bottom] if row > bottom else 0)
                if row == right:
                    break
                row = next_row[row]
            top, bottom = min(top, left), max(bottom, right)
        # Whole blocks only.
        grown = False
        row, final = top, bottom
        while True:
            segment = grid.segment[row * size + first[row]] if first[row] < last[row] else (row + 1) * size
            while segment < row * size + last[row]:
                following = grid.stop[segment]
                if grid.block[segment] >= 0:
                    top = min(top, grid.block[segment] // size)
                    bottom = max(bottom, _absorb(grid, grid.block[segment]))
                    grown = True
                segment = following
            if row == final:
                break
            row = next_row[row]

    chain, row = -1, bottom
    while True:
        if first[row] < last[row]:
            segment = row * size + first[row]
            grid.stop[segment], grid.below[segment] = row * size + last[row], chain
            chain = segment
        first[row], last[row] = size, 0
        if row == top:
            return chain
        row = previous_row[row]


@compiled
def _reconcile(grid: Grid, queued: int) -> None:
    """Join queued blocks with neighbours that are out of order, until there are none.

    Every join brings the solution closer, but for rounding: a limit far above what is ever needed makes sure of an end.
    """
    joins = 4 * queued + 1000
    while queued > 0:
        queued -= 1
        block = grid.queue[queued]
        grid.queued[block] = 0
        if joins > 0 and grid.block[block] == block:  # it has not become part of another meanwhile
            cell = _violation(grid, block)
            if cell >= 0:
                joins -= 1
                union = _join(grid, block, grid.block[grid.segment[cell]])
                queued = _solve_region(grid, union, queued)


@compiled
def solve(grid: Grid) -> None:
    """Solve everything again, as one region."""
    size, region = grid.size, -1
    row = grid.previous_row[size]
    while row < size:
        grid.stop[row * size], grid.below[row * size] = (row + 1) * size, region
        grid.changed_from[row], grid.changed_to[row] = size, 0
        region = row * size
        row = grid.previous_row[row]
    if region >= 0:
        _reconcile(grid, _solve_region(grid, region, 0))  # cells of little weight may have ended up on a wrong side


@compiled
def repair(grid: Grid) -> None:
    """Bring the solution up to date with the samples that have changed since."""
    size, queued = grid.size, 0
    row = grid.next_row[size]
    while row < size:
        if grid.changed_from[row] < grid.changed_to[row]:
            segment = grid.segment[row * size + grid.changed_from[row]]
            while segment < row * size + grid.changed_to[row]:
                following = grid.stop[segment]
                queued = _solve_region(grid, grid.block[segment], queued)
                segment = following
            grid.changed_from[row], grid.changed_to[row] = size, 0
        row = grid.next_row[row]
    _reconcile(grid, queued)


@compiled
def update(grid: Grid) -> None:
    """Bring the solution up to date, in whichever way is faster."""
    sampled = changed = 0
    row = grid.next_row[grid.size]
    while row < grid.size:
        sampled += grid.extent[row]
        changed += max(grid.changed_to[row] - grid.changed_from[row], 0)
        row = grid.next_row[row]
    if changed * WORTH_REPAIRING > sampled:
        solve(grid)
    else:
        repair(grid)
