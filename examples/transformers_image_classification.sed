# https://github.com/huggingface/transformers/blob/ae05b2ae619aa28fdfdcb8244009d585b7e1fed7/examples/pytorch/image-classification/run_image_classification.py
# Give --train_dir and --validation_dir. Augment draws the script's crops and flips in the loader's threads.
# --max_train_samples and --max_eval_samples have no effect; both loaders take the batch size of training.
/^import transformers$/i\
from superdl import Augment, PerSample, Recipe, SuperDataset, SuperLoader, SuperTrainerMixin, split_transform
/^def main():/i\
class Trainer(SuperTrainerMixin, Trainer): pass
/^        pixel_values = torch.stack/,/^        return {"pixel_values/c\
        return dict(zip(("pixel_values", "labels"), examples))
/^    # Initialize our trainer/i\
    def loader(root, recipe, transform, **how):\
        dataset = SuperDataset(root, recipe, transform=transform)\
        return SuperLoader(dataset, batch_size=training_args.per_device_train_batch_size, collate_fn=collate_fn, **how)\
    augment = Augment(size, mean=image_processor.image_mean, std=image_processor.image_std)\
    parts = split_transform(_val_transforms)
s/train_dataset=dataset\["train"\] if/train_dataset=loader(data_args.train_dir, Recipe([]), augment, shuffle=True) if/
s/eval_dataset=dataset\["validation"\] if/eval_dataset=loader(data_args.validation_dir, parts.recipe, PerSample(parts.rest, seed=None)) if/
