"""Plain Keras for the studies in other tools: one compiled model for all trials of a process."""

from contenders.common import export


class Learner:
    """Trains one configuration after the other by Model.fit.

    A trial starts with the initial weights and a reset optimizer. It compiles and traces nothing again, except for a new
    batch size, as in Keras itself.
    """

    def __init__(self, study, x, y, validation):
        """Rows for training, and (x, y) for validation."""
        import keras

        self.keras, self.study, self.rows, self.validation = keras, study, (x, y), validation
        text, self.weights = study.architecture(0)
        self.model = keras.models.model_from_json(text)
        self.model.compile(
            optimizer=keras.optimizers.SGD(learning_rate=0.1, momentum=0.9),
            loss="categorical_crossentropy",
            metrics=["accuracy"],
        )
        self.model.optimizer.build(self.model.trainable_variables)
        self.fresh = [v.numpy() for v in self.model.optimizer.variables]

    def begin(self, key):
        """Configuration `key` from the start."""
        self.values, self.iteration = self.study.values(key), 0
        self.model.set_weights(self.weights)
        for variable, value in zip(self.model.optimizer.variables, self.fresh):
            variable.assign(value)

    def train(self, until):
        """Train up to iteration `until`, with one `fit` for iterations of one batch size: (validation loss, accuracy)."""
        x, y = self.rows
        while self.iteration < until:
            size, end = self.values[self.iteration][1], self.iteration + 1
            while end < until and self.values[end][1] == size:
                end += 1
            set_rate = self.keras.callbacks.LearningRateScheduler(lambda epoch, _: self.values[epoch][0])
            self.model.fit(
                x,
                y,
                batch_size=size,
                initial_epoch=self.iteration,
                epochs=end,
                shuffle=False,
                verbose=0,
                callbacks=[set_rate],
            )
            self.iteration = end
        loss, accuracy = self.model.evaluate(*self.validation, batch_size=1024, verbose=0)
        return float(loss), float(accuracy)


def rows(study, dsn):
    """(x, y, (x, y) for validation) of the raw tables."""
    return (*export(study, dsn), export(study, dsn, "raw_validation"))


def found(results):
    """A contender's output from [(key, iteration, loss, accuracy)], one row for each evaluation."""
    last = {}
    for key, iteration, _, _ in results:
        last[key] = max(iteration, last.get(key, 0))
    key, iteration, loss, accuracy = min(results, key=lambda r: r[2])
    return {
        "loss": loss,
        "accuracy": accuracy,
        "best": [key, iteration],
        "trained": sum(last.values()),
        "asked": sum(last.values()),
    }
