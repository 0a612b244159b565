"""`retrieval export`: a run becomes a bundle, in any form that a model may be served in.

export                                what a bundle says, and the one threshold
forms variants beside                 a model's forms, what each must keep, each beside fp32
onnx_writer onnx_embedding            torch to ONNX, photos through it
quantization rounding half onnx_graph int8 and fp16
"""
