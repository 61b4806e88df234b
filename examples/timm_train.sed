# https://github.com/huggingface/pytorch-image-models/blob/aa4b5850c1543fa488abf260f18390eda46cf85d/train.py
# The transforms stay timm's: they are read back from its loaders. Mixup needs --no-prefetcher. Not with
# --naflex-loader, --train-img-sizes, --aug-splits or --aug-repeats. Labels follow the classes sorted as text,
# where timm sorts numbers in names by value. On several ranks the padding of the last validation batch counts,
# as it does in timm.
/^from timm import utils/i\
from superdl import SuperDataset, SuperSampler, split_transform
/^def main():/i\
def over_super(loader, shuffle):\
    theirs, parts = getattr(loader, 'loader', loader), split_transform(loader.dataset.transform)\
    dataset = SuperDataset(loader.dataset.reader.root, parts.recipe, transform=parts.rest)\
    sampler = SuperSampler(dataset, batch_size=theirs.batch_size, shuffle=shuffle, drop_last=theirs.drop_last)\
    ours = torch.utils.data.DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=theirs.num_workers)\
    if theirs is not loader: loader.loader, ours = ours, loader  # timm's prefetcher normalises what ours gives\
    return ours
/^    if not args.lr:/i\
    loader_train = over_super(loader_train, shuffle=True)
/^    # setup loss function/i\
    loader_eval = loader_eval and over_super(loader_eval, shuffle=False)
