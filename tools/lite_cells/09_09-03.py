model = SimpleNamespace(encode=str.split)  # it tells words apart, and that is all


def engine(**options):
    return Engine(**{"block_size": 16, "max_batch_tokens": 512, "max_sequences": 64} | options)


def asks(lengths):
    return [SimpleNamespace(max_tokens=n) for n in lengths]
