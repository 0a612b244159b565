"""Image encoders as ONNX files of other makers, turned into bundles (`retrieval export --onnx`), without torch.

layout       the files of an encoder: a file, a folder, or a model of the Hugging Face hub
processor    the values of an image processor, or those given on the command line, as our preprocessing
reading      the image input and the outputs of a file, and the file run directly
adapt        the graph with the input and the outputs of a bundle's model
energy       where the feature maps of a model respond, as a further output
export       the bundle, compared with the file
"""
