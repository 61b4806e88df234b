# https://github.com/pytorch/vision/blob/bf01bab6125c5f1152e4f336b470399e52a8559d/references/classification/train.py
# Not with --ra-sampler.
/^from torch import nn/i\
from superdl import Recipe, SuperDataset, SuperSampler, split_transform
s/ dataset = torchvision.datasets.ImageFolder($/ dataset = SuperDataset(/
s/^            traindir,$/            traindir, transform=/
/dataset_test = torchvision.datasets.ImageFolder($/,/^        )/c\
        parts = split_transform(weights.transforms() if args.weights and args.test_only else preprocessing.transforms)\
        dataset_test = SuperDataset(valdir, parts.recipe, padding="skip", transform=parts.rest)
/^    print("Creating data loaders")/,/^    return dataset/{
/^    if args.distributed:/,/SequentialSampler/c\
    train_sampler = SuperSampler(dataset, batch_size=args.batch_size, shuffle=True)\
    test_sampler = SuperSampler(dataset_test, batch_size=args.batch_size, shuffle=False)
}
/^    if mixup_cutmix is not None:/,/^        collate_fn = default_collate/c\
    collate_fn = mixup_cutmix and (lambda batch: mixup_cutmix(*batch))
s/^        batch_size=args.batch_size,$/        batch_size=None,/
s/^        dataset_test, batch_size=args.batch_size,/        dataset_test, batch_size=None,/
