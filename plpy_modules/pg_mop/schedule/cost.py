"""What stages will take, by what units have taken so far: the longest path below each of them."""

LATE = 20  # stages that are estimated anew for each unit that has ended since the last time
LESS = 0.9  # of what a unit was known to take: so much is news


class Costs:
    """Seconds of training that stages have left. Watches a board (see schedule/base.py).

    A unit of a stage takes the least of what units with the same key took (`key_of`: stage -> something hashable, or
    None: those of the same stage alone); else what is expected by what earlier runs took (`expected`: stage -> seconds,
    or 0); else as long as one of its parent; else nobody knows. The critical path of
    TreeML (thesis 2021, section 4.3) is the longest of these. Estimates of what lies below a stage follow the
    measurements with a delay, such that they cost the same for each unit however many stages there are.
    """

    def __init__(self, board, key_of, expected=None):
        self.board, self.key_of, self.expected = board, key_of, expected or (lambda stage: 0.0)
        self.seconds = {}  # key -> least seconds of a training unit
        self.price = {}  # stage number -> estimated seconds of a unit; 0: not known
        self.below = {}  # stage number -> estimated seconds of the longest path below it
        self.visits = self.known = 0  # units left; those of them whose seconds are estimated
        self.total = 0.0  # the latter's seconds
        self.news, self.units = False, 0  # has anything changed, and units ended since the last estimate

    def left(self, number):
        """Seconds of the longest path that begins with what a stage has left; None where nobody knows."""
        price = self.price[number]
        return price * self.board.visits_left(number) + self.below.get(number, 0.0) if price else None

    def all_left(self):
        """Seconds of training that are left; what is not known is like the mean of the others. 0 before a unit ended."""
        return self.total * self.visits / self.known if self.known else 0.0

    def added(self, stages):
        """Stages are wanted, parents first. Returns the numbers of those above with longer paths by that."""
        for stage in stages:
            self._take(stage)
        lifted = set()
        for stage in reversed(stages):
            lifted |= self._lift(stage)
        return lifted

    def opened(self, stage):
        """A stage may be trained now: its parent is known as well as it will be."""
        before, visits = self.price[stage.number], self.board.visits_left(stage.number)
        self._reprice(stage, before, self._estimate(stage), visits)

    def finished(self, unit, seconds):
        """A training unit has ended, as the board knows. True where the stage's seconds were not known before."""
        number, stage = unit.stage, self.board.plan.stages[unit.stage]
        key = self._key(stage)
        known = self.seconds.get(key)
        if known is None or seconds < known:
            self.seconds[key] = seconds
            self.news = self.news or known is None or seconds < LESS * known
        self.units += 1
        if number not in self.price:
            return False
        before = self.price[number]
        self.visits -= 1
        if before:
            self.known -= 1
            self.total -= before
        self._reprice(stage, before, self.seconds[key], self.board.visits_left(number))
        return not before

    def settle(self, more=0):
        """Estimate all anew where there is news and it is worth its time (`more`: that the caller does in addition,
        in stages). True where it was done."""
        if not self.news or self.units * LATE < len(self.board.left) + more:
            return False
        self.news, self.units = False, 0
        stages = sorted(self.board.left.values(), key=lambda stage: stage.number)
        self.below = below = {}
        self.visits = self.known = 0
        self.total = 0.0
        taken = [(stage, self._take(stage)) for stage in stages]
        for stage, seconds in reversed(taken):
            if stage.parent is not None:
                path, above = seconds + below.get(stage.number, 0.0), stage.parent.number
                if path > below.get(above, 0.0):
                    below[above] = path
        return True

    def _key(self, stage):
        key = self.key_of(stage)
        return ("stage", stage.number) if key is None else ("key", key)

    def _estimate(self, stage):
        seconds = self.seconds.get(self._key(stage))
        if seconds is None:
            seconds = self.expected(stage)
        if not seconds:
            seconds = self.price.get(stage.parent.number, 0.0) if stage.parent is not None else 0.0
        return seconds

    def _take(self, stage):
        """Count what a stage has left. Returns its seconds."""
        price = self.price[stage.number] = self._estimate(stage)
        visits = self.board.visits_left(stage.number)
        self.visits += visits
        if price:
            self.known += visits
            self.total += price * visits
        return price * visits

    def _reprice(self, stage, before, price, visits):
        self.price[stage.number] = price
        self.total += (price - before) * visits
        self.known += visits * (bool(price) - bool(before))

    def _lift(self, stage):
        lifted, left = set(), self.board.left
        path = self.price[stage.number] * self.board.visits_left(stage.number) + self.below.get(stage.number, 0.0)
        stage = stage.parent
        while stage is not None and stage.number in left and self.below.get(stage.number, 0.0) < path:
            self.below[stage.number] = path
            lifted.add(stage.number)
            path += self.price[stage.number] * self.board.visits_left(stage.number)
            stage = stage.parent
        return lifted
