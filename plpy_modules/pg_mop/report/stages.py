"""The tree of stages, drawn: unbranched stretches of the search plan as lines, each with a height of its own."""


def tree(paths):
    """Nodes of the tree of `paths`, {mst_key: stages from the first iteration on}, as dicts: parent (place in the list,
    or None), first and last iteration, keys (the configurations that share it), y (0 is the top).

    A parent comes before its children.
    """
    nodes, rows = [], [0]

    def grow(keys, parent, begin):
        """A node for the stages that all of `keys` have in common after `begin` of them, and what branches off."""
        end = begin
        while len({paths[k][end] if end < len(paths[k]) else None for k in keys}) == 1 and end < len(paths[keys[0]]):
            end += 1
        node = {"parent": parent, "first": begin + 1, "last": end, "keys": keys, "y": None}
        place = len(nodes)
        nodes.append(node)
        branches = {}
        for key in keys:
            if end < len(paths[key]):
                branches.setdefault(paths[key][end], []).append(key)
        below = [(branch, place, end) for branch in branches.values()]
        return node, below

    roots = {}
    for key, path in paths.items():
        if path:
            roots.setdefault(path[0], []).append(key)
    # depth first, without recursion: a path may branch in each of a thousand iterations
    waiting = [(keys, None, 0) for keys in reversed(roots.values())]
    while waiting:
        node, below = grow(*waiting.pop())
        if not below:
            node["y"] = rows[0]
            rows[0] += 1
        waiting.extend(reversed(below))
    children = {}
    for node in nodes:
        children.setdefault(node["parent"], []).append(node)
    for place in range(len(nodes) - 1, -1, -1):
        if nodes[place]["y"] is None:
            heights = [child["y"] for child in children[place]]
            nodes[place]["y"] = (min(heights) + max(heights)) / 2
    return nodes
