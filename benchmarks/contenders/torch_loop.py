"""PyTorch, a plain loop: COPY the table out, then processes that train whole configurations batch by batch."""

from contenders.common import ADAM_EPSILON, EVALUATED, exporting, main


def net_of(workload, number):
    """(architecture `number` without its softmax, its trainable parameters), with the workload's initial weights."""
    import torch

    activations = {
        "relu": torch.nn.ReLU,
        "tanh": torch.nn.Tanh,
        "sigmoid": torch.nn.Sigmoid,
        "linear": torch.nn.Identity,
    }
    if (last := workload.nets[number][-1])[2] != "softmax":
        raise ValueError(f"the loss contains a softmax, and net {number} ends in {last}")
    layers, trained, shape = [], [], list(workload.shape)
    weights = iter(torch.from_numpy(w) for w in workload.architecture(number)[1])
    if len(shape) == 3:
        layers.append(order(0, 3, 1, 2))  # PyTorch has the channels first
    for place, (kind, *arguments) in enumerate(workload.nets[number]):
        layer, activation = None, None
        if kind == "dense":
            units, activation = arguments
            layer = torch.nn.Linear(shape[0], units)
            kernel, shape = next(weights).T, [units]
        elif kind == "convolution":
            filters, size = arguments
            layer, activation = torch.nn.Conv2d(shape[2], filters, size), "relu"
            kernel, shape = next(weights).permute(3, 2, 0, 1), [shape[0] - size + 1, shape[1] - size + 1, filters]
        elif kind == "pool":
            layers.append(torch.nn.MaxPool2d(2))
            shape = [shape[0] // 2, shape[1] // 2, shape[2]]
        else:
            layers += [order(0, 2, 3, 1), torch.nn.Flatten()]  # the order of Keras
            shape = [shape[0] * shape[1] * shape[2]]
        if layer is not None:
            with torch.no_grad():
                layer.weight.copy_(kernel)
                layer.bias.copy_(next(weights))
            layer.requires_grad_(place >= workload.frozen)
            trained += layer.parameters() if place >= workload.frozen else []
            layers.append(layer)
        if activation and place < len(workload.nets[number]) - 1:  # (the loss contains the softmax)
            layers.append(activations[activation]())
    return torch.nn.Sequential(*layers), trained


def order(*places):
    """A layer that puts dimensions into another order."""
    import torch

    class Layer(torch.nn.Module):
        def forward(self, x):
            return x.permute(*places)

    return Layer()


def train(workload, key, x, y, device="cpu", most=None):
    """One configuration on rows `x` with one-hot `y`: its final loss and the number of its updates.

    `most`: at most so many updates, without the final loss.
    """
    import torch

    torch.set_num_threads(1)
    c = workload.configurations[key]
    net, trained = net_of(workload, c.architecture)
    net.to(device)
    constants = {"Adam": {"eps": ADAM_EPSILON}, "SGD": {"momentum": c.momentum}}[c.optimizer]
    optimizer = getattr(torch.optim, c.optimizer)(trained, lr=c.learning_rate, **constants)
    measure = torch.nn.CrossEntropyLoss()
    x, y, updates = torch.as_tensor(x, device=device), torch.as_tensor(y, device=device), 0
    for _ in range(workload.iterations):
        for rows, truth in zip(x.split(c.batch_size), y.split(c.batch_size)):
            optimizer.zero_grad()
            measure(net(rows), truth).backward()
            optimizer.step()
            updates += 1
            if updates == most:
                return None, updates
    with torch.no_grad():
        total = sum(
            float(measure(net(rows), truth)) * len(rows) for rows, truth in zip(x.split(EVALUATED), y.split(EVALUATED))
        )
    return total / len(x), updates


contender = exporting(train)


if __name__ == "__main__":
    main(contender)
