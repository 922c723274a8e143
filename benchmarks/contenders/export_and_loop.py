"""Export and loop: COPY the table out, then plain Keras processes, each training whole configurations by Model.fit."""

from contenders.common import exporting, main, train_whole

contender = exporting(train_whole)


if __name__ == "__main__":
    main(contender)
