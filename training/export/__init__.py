"""Export of a run as a bundle, in any precision and for any execution provider (`retrieval export`).

export                                contents of the bundle, calibration of the threshold
exported_models variants comparison   models of each variant, their checks, comparison with fp32
verification remembered_inliers       choice of the geometric verification
onnx_writer onnx_embedding            torch to ONNX, embedding with ONNX Runtime
quantization rounding fp16 onnx_graph int8 and fp16
"""
