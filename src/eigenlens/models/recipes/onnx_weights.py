"""Read weights from an ONNX graph, under the names of the module that was exported.

An exporter keeps the names of embeddings, norms and biases, but stores the matrix of a linear layer
transposed under a number (`onnx::MatMul_753`). Its name is that of the node that multiplies by it:
`/layer.0/attention/q_lin/MatMul`. A quantiser replaces `w` by `w_quantized`, `w_scale`,
`w_zero_point`, with w = scale · (quantized − zero_point).
"""

import numpy as np

from eigenlens.extras import needs

QUANTISED = "_quantized"


def onnx_weights(model: bytes, name: str) -> dict[str, np.ndarray]:
    """Return every constant of the graph in float32, dequantised.

    Linear weights have torch's layout, `(out, in)`.

    A constant that the graph uses without a module's name (a folded position embedding) keeps its
    number as its name.
    """
    needs("onnx", what=f"converting {name}")
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(model).graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    # Scales and zero points belong to a weight, or to activations that are not quantised here.
    tensors = [key for key in constants if not key.endswith(("_scale", "_zero_point"))]
    weights = {_stem(key): _dequantised(constants, key) for key in tensors}
    for node in graph.node:
        if node.op_type not in ("MatMul", "MatMulInteger") or _stem(node.input[1]) not in weights:
            continue
        module = node.name.strip("/").rpartition("/")[0].replace("/", ".")
        weights[f"{module}.weight"] = weights.pop(_stem(node.input[1])).T  # (in, out) -> (out, in)
    return weights


def _stem(name: str) -> str:
    return name.removesuffix("_DequantizeLinear_Output").removesuffix(QUANTISED)


def _dequantised(constants: dict[str, np.ndarray], name: str) -> np.ndarray:
    stored = constants[name].astype(np.float32)
    if not name.endswith(QUANTISED):
        return stored
    scale, zero_point = constants[_stem(name) + "_scale"], constants[_stem(name) + "_zero_point"]
    # One scale a tensor. Scales per column would need the axis, and none of the catalogue's files
    # has them.
    assert scale.size == zero_point.size == 1, f"{name} is quantised per channel"
    return (stored - zero_point.astype(np.float32)) * scale.astype(np.float32)
